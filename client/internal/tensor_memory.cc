#include "client/internal/tensor_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/internal/gpu_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"

namespace paramshard::internal {
namespace {

constexpr size_t kUuidBytes = 16;

absl::Status NoStreams() {
  return absl::FailedPreconditionError("session memory: want memory of a GPU for streams, got host memory");
}

class HostTensorMemory : public TensorMemory {
 public:
  static absl::StatusOr<std::unique_ptr<TensorMemory>> Map(const SessionMemory& memory);

  void Unmap() override {
    planes_ = MappedMemory();
    slots_ = MappedMemory();
  }

  const uint8_t* planes() const override { return planes_.data(); }
  uint8_t* slots() const override { return slots_.data(); }
  uint8_t* scratch() const override { return nullptr; }
  int gpu() const override { return -1; }
  GpuStream own_stream() const override { return nullptr; }
  GpuStream return_stream() const override { return nullptr; }

  absl::Status Copy(absl::Span<const ByteCopy> copies, GpuStream) override {
    for (const ByteCopy& copy : copies) std::memcpy(copy.target, copy.source, copy.bytes);
    return absl::OkStatus();
  }
  absl::Status Zero(uint8_t* data, int64_t bytes, GpuStream) override {
    std::memset(data, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyGradients(absl::Span<const GradientCopy> copies, GpuStream) override {
    for (const GradientCopy& copy : copies) CopyGradientOnHost(copy);
    return absl::OkStatus();
  }
  absl::Status Synchronize(GpuStream) override { return absl::OkStatus(); }
  absl::Status FollowDefaultStream(GpuStream) override { return absl::OkStatus(); }

  uint64_t IdOf(GpuStream) const override { return 0; }
  absl::Status EnqueueWords(absl::Span<const WordOperation>, GpuStream) override { return NoStreams(); }
  absl::Status SetMark(int, GpuStream) override { return NoStreams(); }
  absl::Status AwaitMark(int, GpuStream) override { return NoStreams(); }

 private:
  HostTensorMemory(MappedMemory planes, MappedMemory slots) : planes_(std::move(planes)), slots_(std::move(slots)) {}

  MappedMemory planes_;
  MappedMemory slots_;
};

absl::StatusOr<std::unique_ptr<TensorMemory>> HostTensorMemory::Map(const SessionMemory& memory) {
  using Access = MappedMemory::Access;
  ASSIGN_OR_RETURN(MappedMemory planes,
                   MappedMemory::Map("planes", memory.planes, memory.sizes.planes_bytes, Access::kRead));
  ASSIGN_OR_RETURN(MappedMemory slots,
                   MappedMemory::Map("slots", memory.slots, memory.sizes.slots_bytes, Access::kReadWrite));
  return std::unique_ptr<TensorMemory>(new HostTensorMemory(std::move(planes), std::move(slots)));
}

absl::Status CheckUuid(absl::string_view gpu_uuid) {
  if (gpu_uuid.size() == kUuidBytes) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("session memory: want a GPU's UUID of ", kUuidBytes, " bytes, got ", gpu_uuid.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MapTensors(absl::string_view gpu_uuid, const TensorMemoryParts& parts) {
  if (gpu_uuid.empty()) return HostTensorMemory::Map(*parts.memory);
  RETURN_IF_ERROR(CheckUuid(gpu_uuid));
  return MapGpuTensors(gpu_uuid, parts);
}

absl::StatusOr<PlaneMemory> MapPlanes(absl::string_view gpu_uuid, const wire::FileDescriptor& fd, int64_t size_bytes) {
  if (!gpu_uuid.empty()) {
    RETURN_IF_ERROR(CheckUuid(gpu_uuid));
    return MapGpuPlanes(gpu_uuid, fd, size_bytes);
  }
  ASSIGN_OR_RETURN(MappedMemory mapped, MappedMemory::Map("planes", fd, size_bytes, MappedMemory::Access::kRead));
  const auto owner = std::make_shared<const MappedMemory>(std::move(mapped));
  return PlaneMemory{.data = std::shared_ptr<const uint8_t>(owner, owner->data())};
}

void CopyGradientOnHost(const GradientCopy& copy) {
  if (copy.source.type == copy.target.type) {
    std::memcpy(copy.target.data, copy.source.data, copy.count * GradientBytes(copy.source.type));
  } else if (copy.source.type == GradientType::kFP32) {
    const auto* const values = static_cast<const float*>(copy.source.data);
    std::transform(values, values + copy.count, static_cast<uint16_t*>(copy.target.data), EncodeBFloat16);
  } else {
    const auto* const codes = static_cast<const uint16_t*>(copy.source.data);
    std::transform(codes, codes + copy.count, static_cast<float*>(copy.target.data), DecodeBFloat16);
  }
}

std::string GpuName(absl::string_view uuid) {
  const std::string digits = absl::BytesToHexString(uuid);
  const absl::string_view view = digits;
  return absl::StrCat("GPU-", view.substr(0, 8), "-", view.substr(8, 4), "-", view.substr(12, 4), "-",
                      view.substr(16, 4), "-", view.substr(20));
}

}  // namespace paramshard::internal
