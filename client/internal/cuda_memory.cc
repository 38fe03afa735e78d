// Implementation of gpu_memory.h with CUDA.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/deadline.h"
#include "client/internal/gpu_memory.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/formats/codec_cuda.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/faults.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"

namespace paramshard::internal {
namespace {

// --- Which GPU

std::string UuidOf(const cudaDeviceProp& properties) { return std::string(properties.uuid.bytes, 16); }

// Returns "none", or the GPUs of this process, and the variable that may hide others.
std::string SeenGpus(const std::vector<std::string>& uuids) {
  std::vector<std::string> names;
  for (size_t i = 0; i < uuids.size(); ++i) names.push_back(absl::StrCat(GpuName(uuids[i]), " (cuda:", i, ")"));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::StrCat(names.empty() ? "none" : absl::StrJoin(names, ", "),
                      visible == nullptr ? "; CUDA_VISIBLE_DEVICES is not set"
                                         : absl::StrCat("; CUDA_VISIBLE_DEVICES is \"", visible, "\""));
}

absl::Status NotSeen(absl::string_view uuid, absl::string_view got) {
  return absl::FailedPreconditionError(
      absl::StrCat("session memory: want ", GpuName(uuid), " among the GPUs of this process, got ", got));
}

absl::StatusOr<int> FindGpu(absl::string_view uuid) {
  int count = 0;
  if (const absl::Status status = gpu::ToStatus(cudaGetDeviceCount(&count), "count the GPUs"); !status.ok()) {
    return NotSeen(uuid, absl::StrCat(SeenGpus({}), " (", status.message(), ")"));
  }
  std::vector<std::string> uuids;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    RETURN_IF_ERROR(
        gpu::ToStatus(cudaGetDeviceProperties(&properties, device), absl::StrCat("describe cuda:", device)));
    uuids.push_back(UuidOf(properties));
    if (uuids.back() == uuid) return device;
  }
  return NotSeen(uuid, SeenGpus(uuids));
}

// Returns the other GPUs of this process that reach the memory of a GPU.
absl::StatusOr<std::vector<int>> FindPeers(int device) {
  int count = 0;
  RETURN_IF_ERROR(gpu::ToStatus(cudaGetDeviceCount(&count), "count the GPUs"));
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    if (other == device) continue;
    int reaches = 0;
    RETURN_IF_ERROR(gpu::ToStatus(cudaDeviceCanAccessPeer(&reaches, other, device),
                                  absl::StrCat("ask whether cuda:", other, " reaches cuda:", device)));
    if (reaches != 0) peers.push_back(other);
  }
  return peers;
}

// --- Waits

// Waits for a stream's last work are short: a sleep would take longer.
constexpr absl::Duration kSpinning = absl::Microseconds(500);

absl::Status AwaitWork(absl::string_view what, int gpu, absl::Duration timeout,
                       absl::FunctionRef<absl::StatusOr<bool>()> is_done) {
  ASSIGN_OR_RETURN(const bool done, Poll({.timeout = timeout, .spinning = kSpinning}, is_done));
  if (done) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("wait for ", what, " of cuda:", gpu, ": timed out after ", absl::FormatDuration(timeout)));
}

absl::Status AwaitAllStreams(int gpu, absl::Duration timeout) {
  ASSIGN_OR_RETURN(gpu::Event end, gpu::Event::Create(gpu));
  RETURN_IF_ERROR(end.RecordDevice());
  return AwaitWork("every stream", gpu, timeout, [&] { return end.IsDone(); });
}

// --- Memory

// Memory that the work of streams accesses.
struct Mappings {
  std::shared_ptr<const MappedMemory> page;
  gpu::HostRegistration words;
  gpu::DeviceMemory planes;
  gpu::DeviceMemory slots;
  gpu::DeviceMemory scratch;
};

// Unmaps once the GPU's streams are done, or never. Unregistering the words would also wait for the device, but after
// the tensors are gone, and without a timeout.
void UnmapWhenIdle(int gpu, absl::Duration timeout, Mappings&& taken) {
  const gpu::DeviceScope scope(gpu);
  Mappings mappings = std::move(taken);
  if (AwaitAllStreams(gpu, timeout).ok() || !gpu::FaultOf(gpu).ok()) return;
  static absl::Mutex mu(absl::kConstInit);
  static auto* const kept = new std::vector<Mappings>;
  const absl::MutexLock lock(&mu);
  kept->push_back(std::move(mappings));
}

class CudaTensorMemory final : public TensorMemory {
 public:
  static absl::StatusOr<std::unique_ptr<TensorMemory>> Map(int device, const TensorMemoryParts& parts);
  ~CudaTensorMemory() override { CudaTensorMemory::Unmap(); }

  void Unmap() override;

  const uint8_t* planes() const override { return mappings_.planes.data(); }
  uint8_t* slots() const override { return mappings_.slots.data(); }
  uint8_t* scratch() const override { return mappings_.scratch.data(); }
  int gpu() const override { return stream_.device(); }
  GpuStream own_stream() const override { return stream_.get(); }
  GpuStream return_stream() const override { return return_stream_.get(); }

  absl::Status Copy(absl::Span<const ByteCopy> copies, GpuStream stream) override;
  absl::Status Zero(uint8_t* data, int64_t bytes, GpuStream stream) override;
  absl::Status CopyGradients(absl::Span<const GradientCopy> copies, GpuStream stream) override;
  absl::Status Synchronize(GpuStream stream) override;
  absl::Status FollowDefaultStream(GpuStream stream) override;
  uint64_t IdOf(GpuStream stream) const override;
  absl::Status EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) override;
  absl::Status SetMark(int mark, GpuStream stream) override;
  absl::Status AwaitMark(int mark, GpuStream stream) override;

 private:
  CudaTensorMemory(Mappings mappings, absl::Duration timeout, std::vector<gpu::Event> marks, gpu::Event default_mark,
                   gpu::Stream stream, gpu::Stream return_stream)
      : mappings_(std::move(mappings)),
        timeout_(timeout),
        marks_(std::move(marks)),
        default_mark_(std::move(default_mark)),
        stream_(std::move(stream)),
        return_stream_(std::move(return_stream)) {}

  Mappings mappings_;  // empty after Unmap
  const absl::Duration timeout_;
  std::vector<gpu::Event> marks_;
  gpu::Event default_mark_;  // of the default stream
  const gpu::Stream stream_;
  const gpu::Stream return_stream_;
  std::vector<gpu::RangeCopy> copies_;
  std::vector<gpu::PlaneDecode> conversions_;
  gpu::WordOperations word_operations_;
};

// The driver's error does not name the memory.
absl::StatusOr<gpu::DeviceMemory> Import(const std::string& name, int device, const wire::FileDescriptor& fd,
                                         int64_t bytes, bool read_only, absl::Span<const int> others = {}) {
  auto memory = gpu::DeviceMemory::Import(device, fd.get(), bytes, read_only, others);
  if (memory.ok()) return memory;
  return absl::Status(memory.status().code(), absl::StrCat("map ", name, ": failed to map its descriptor as ", bytes,
                                                           " bytes of cuda:", device, ": ", memory.status().message()));
}

absl::StatusOr<std::unique_ptr<TensorMemory>> CudaTensorMemory::Map(int device, const TensorMemoryParts& parts) {
  const gpu::DeviceScope scope(device);
  const SessionMemory& memory = *parts.memory;
  ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(device));
  ASSIGN_OR_RETURN(gpu::Stream return_stream, gpu::Stream::Create(device));
  RETURN_IF_ERROR(gpu::LoadCopyRanges());
  std::vector<gpu::Event> marks;
  for (int i = 0; i < parts.marks; ++i) {
    ASSIGN_OR_RETURN(gpu::Event mark, gpu::Event::Create(device));
    marks.push_back(std::move(mark));
  }
  ASSIGN_OR_RETURN(gpu::Event default_mark, gpu::Event::Create(device));
  ASSIGN_OR_RETURN(gpu::DeviceMemory planes,
                   Import("planes", device, memory.planes, memory.sizes.planes_bytes, /*read_only=*/true));
  ASSIGN_OR_RETURN(gpu::DeviceMemory slots,
                   Import("slots", device, memory.slots, memory.sizes.slots_bytes, /*read_only=*/false));
  ASSIGN_OR_RETURN(gpu::DeviceMemory scratch,
                   gpu::DeviceMemory::Create(device, parts.scratch_bytes, {device}, /*shareable=*/false));
  ASSIGN_OR_RETURN(gpu::HostRegistration words,
                   gpu::HostRegistration::Register(parts.words->data(), parts.words->size_bytes()));
  return std::unique_ptr<TensorMemory>(new CudaTensorMemory(
      {parts.words, std::move(words), std::move(planes), std::move(slots), std::move(scratch)}, parts.timeout,
      std::move(marks), std::move(default_mark), std::move(stream), std::move(return_stream)));
}

// The trainer's streams may still have words to write here.
void CudaTensorMemory::Unmap() {
  if (mappings_.page != nullptr) UnmapWhenIdle(gpu(), timeout_, std::move(mappings_));
}

absl::Status CudaTensorMemory::Copy(absl::Span<const ByteCopy> copies, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  copies_.clear();
  for (const ByteCopy& copy : copies) copies_.push_back({copy.target, copy.source, copy.bytes});
  return gpu::CopyRanges(copies_, stream);
}

absl::Status CudaTensorMemory::Zero(uint8_t* data, int64_t bytes, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return gpu::ToStatus(cudaMemsetAsync(data, 0, bytes, stream), "zero a gradient slot");
}

// Gradients of another type are decoded, as a plane of one row that has the format of their type.
absl::Status CudaTensorMemory::CopyGradients(absl::Span<const GradientCopy> copies, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  copies_.clear();
  conversions_.clear();
  for (const auto& [source, target, count] : copies) {
    if (source.type == target.type) {
      copies_.push_back({target.data, source.data, count * GradientBytes(source.type)});
    } else {
      const bool rounds = source.type == GradientType::kFP32;
      conversions_.push_back({.encoding = {rounds ? Format::kFP32 : Format::kBF16},
                              .encoded = {.data = static_cast<const uint8_t*>(source.data)},
                              .rows = 1,
                              .cols = count,
                              .type = rounds ? gpu::DecodedType::kBF16 : gpu::DecodedType::kFP32,
                              .out = target.data});
    }
  }
  if (!copies_.empty()) RETURN_IF_ERROR(gpu::CopyRanges(copies_, stream));
  return conversions_.empty() ? absl::OkStatus() : gpu::DecodePlanes(conversions_, stream);
}

absl::Status CudaTensorMemory::Synchronize(GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return AwaitWork("a stream", gpu(), timeout_, [&] { return gpu::IsIdle(gpu(), stream); });
}

// An event of the legacy default stream comes after the work of all streams that wait for that one. So does the rest of
// a copy from pageable memory, which cudaMemcpy may leave under way when it returns.
absl::Status CudaTensorMemory::FollowDefaultStream(GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  RETURN_IF_ERROR(default_mark_.Record(cudaStreamLegacy));
  return gpu::ToStatus(cudaStreamWaitEvent(stream, default_mark_.get(), 0), "wait for the default stream");
}

// Handles are used again after a stream is destroyed; its id is not. No id becomes 0.
uint64_t CudaTensorMemory::IdOf(GpuStream stream) const {
  const gpu::DeviceScope scope(gpu());
  unsigned long long id = 0;
  return cudaStreamGetId(stream, &id) == cudaSuccess ? id + 1 : 0;
}

absl::Status CudaTensorMemory::EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) {
  if (operations.empty()) return absl::OkStatus();
  const gpu::DeviceScope scope(gpu());
  word_operations_.Clear();
  for (const WordOperation& operation : operations) {
    if (operation.kind == WordOperation::Kind::kAwait) {
      word_operations_.Await(operation.word, operation.value);
    } else {
      word_operations_.Write(operation.word, operation.value);
    }
  }
  return word_operations_.Enqueue(stream);
}

absl::Status CudaTensorMemory::SetMark(int mark, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return marks_[mark].Record(stream);
}

absl::Status CudaTensorMemory::AwaitMark(int mark, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return gpu::ToStatus(cudaStreamWaitEvent(stream, marks_[mark].get(), 0), "wait for an event");
}

// --- Copies for views, which know only their GPU

// Copies between the host and one GPU, on a separate stream: the default stream would wait for the trainer's work. The
// runtime waits without a timeout for copies from or to pageable memory, so bytes go through pinned memory.
class HostCopies {
 public:
  // Returns the copies of a GPU, which live as long as the process.
  static HostCopies& Of(int gpu) {
    static absl::Mutex mu(absl::kConstInit);
    static auto* const copies = new std::map<int, HostCopies>;
    const absl::MutexLock lock(&mu);
    return copies->try_emplace(gpu, gpu).first->second;
  }

  explicit HostCopies(int gpu) : gpu_(gpu) {}

  absl::Status ToHost(absl::Span<const uint8_t> source, uint8_t* target) {
    return Copy(source, target, cudaMemcpyDeviceToHost);
  }
  absl::Status FromHost(absl::Span<const uint8_t> source, uint8_t* target) {
    return Copy(source, target, cudaMemcpyHostToDevice);
  }

 private:
  static constexpr size_t kPartBytes = size_t{4} << 20;

  struct Lane {
    gpu::Stream stream;
    gpu::PinnedArray<uint8_t> staged;
  };

  absl::Status Copy(absl::Span<const uint8_t> source, uint8_t* target, cudaMemcpyKind kind) {
    const gpu::DeviceScope scope(gpu_);
    const Deadline deadline = Deadline::After(kStreamWorkTimeout);
    const absl::MutexLock lock(&mu_);
    for (size_t offset = 0; offset < source.size(); offset += kPartBytes) {
      RETURN_IF_ERROR(OpenLane());
      uint8_t* const staged = lane_->staged.data();
      const size_t bytes = std::min(kPartBytes, source.size() - offset);
      if (kind == cudaMemcpyHostToDevice) {
        std::memcpy(staged, source.data() + offset, bytes);
        RETURN_IF_ERROR(CopyPart(target + offset, staged, bytes, deadline));
      } else {
        RETURN_IF_ERROR(CopyPart(staged, source.data() + offset, bytes, deadline));
        std::memcpy(target + offset, staged, bytes);
      }
    }
    return absl::OkStatus();
  }

  absl::Status OpenLane() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (lane_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(gpu_));
    ASSIGN_OR_RETURN(gpu::PinnedArray<uint8_t> staged, gpu::PinnedArray<uint8_t>::Create(kPartBytes));
    lane_ = std::make_unique<Lane>(Lane{std::move(stream), std::move(staged)});
    return absl::OkStatus();
  }

  // A late copy may still use its lane, which is then never used again.
  absl::Status CopyPart(void* target, const void* source, size_t bytes, const Deadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const cudaStream_t stream = lane_->stream.get();
    absl::Status status = gpu::ToStatus(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream),
                                        absl::StrCat("copy between the host and cuda:", gpu_));
    if (status.ok()) {
      status = AwaitWork("a copy between the host and memory", gpu_, deadline.Left(),
                         [&] { return gpu::IsIdle(gpu_, stream); });
    }
    if (!status.ok()) late_.push_back(std::move(lane_));
    return status;
  }

  const int gpu_;
  absl::Mutex mu_;
  std::unique_ptr<Lane> lane_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Lane>> late_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MapGpuTensors(absl::string_view gpu_uuid,
                                                            const TensorMemoryParts& parts) {
  ASSIGN_OR_RETURN(const int device, FindGpu(gpu_uuid));
  return CudaTensorMemory::Map(device, parts);
}

absl::StatusOr<PlaneMemory> MapGpuPlanes(absl::string_view gpu_uuid, const wire::FileDescriptor& fd,
                                         int64_t size_bytes) {
  ASSIGN_OR_RETURN(const int device, FindGpu(gpu_uuid));
  const gpu::DeviceScope scope(device);
  ASSIGN_OR_RETURN(const std::vector<int> peers, FindPeers(device));
  ASSIGN_OR_RETURN(gpu::DeviceMemory planes, Import("planes", device, fd, size_bytes, /*read_only=*/true, peers));
  const uint8_t* const data = planes.data();
  const auto owner = std::make_shared<Mappings>();
  owner->planes = std::move(planes);
  return PlaneMemory{
      .data = std::shared_ptr<const uint8_t>(
          data, [owner, device](const uint8_t*) { UnmapWhenIdle(device, kStreamWorkTimeout, std::move(*owner)); }),
      .gpu = device};
}

absl::Status CopyFromGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target) {
  return source.empty() ? absl::OkStatus() : HostCopies::Of(gpu).ToHost(source, target);
}

absl::Status CopyToGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target) {
  return source.empty() ? absl::OkStatus() : HostCopies::Of(gpu).FromHost(source, target);
}

}  // namespace paramshard::internal
