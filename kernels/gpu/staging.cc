#include "kernels/gpu/staging.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {

class StagingLanes::Turn {
 public:
  explicit Turn(StagingLanes& lanes) : lanes_(lanes) {
    const absl::MutexLock lock(&lanes_.mu_, absl::Condition(&lanes_, &StagingLanes::HasFree));
    lane_ = lanes_.free_.back();
    lanes_.free_.pop_back();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    const absl::MutexLock lock(&lanes_.mu_);
    lanes_.free_.push_back(lane_);
  }

  const Lane& lane() const { return *lane_; }
  uint8_t* buffer() const { return lane_->buffer.data(); }

 private:
  StagingLanes& lanes_;
  Lane* lane_ = nullptr;
};

absl::StatusOr<std::unique_ptr<StagingLanes>> StagingLanes::Create(int device, int count, int64_t lane_bytes) {
  const DeviceScope scope(device);
  std::unique_ptr<StagingLanes> staging(new StagingLanes(device, lane_bytes));
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(PinnedArray<uint8_t> buffer, PinnedArray<uint8_t>::Create(lane_bytes));
    ASSIGN_OR_RETURN(Stream stream, Stream::Create(device));
    staging->lanes_.push_back({std::move(buffer), std::move(stream)});
  }
  const absl::MutexLock lock(&staging->mu_);
  for (Lane& lane : staging->lanes_) staging->free_.push_back(&lane);
  return staging;
}

absl::Status StagingLanes::Read(const uint8_t* data, int64_t size_bytes, Sink sink) {
  if (size_bytes == 0) return absl::OkStatus();
  const DeviceScope scope(device_);
  const Turn turn(*this);
  for (int64_t offset = 0; offset < size_bytes; offset += lane_bytes_) {
    const int64_t piece_bytes = std::min(lane_bytes_, size_bytes - offset);
    RETURN_IF_ERROR(Copy(turn.buffer(), data + offset, piece_bytes, turn.lane()));
    sink(absl::MakeConstSpan(turn.buffer(), piece_bytes));
  }
  return absl::OkStatus();
}

absl::Status StagingLanes::Write(uint8_t* data, absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  const DeviceScope scope(device_);
  const Turn turn(*this);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(lane_bytes_)));
    std::memcpy(turn.buffer(), piece.data(), piece.size());
    RETURN_IF_ERROR(Copy(data, turn.buffer(), static_cast<int64_t>(piece.size()), turn.lane()));
    data += piece.size();
    bytes.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

// Also after an error nothing uses the buffer any more, or the device is broken.
absl::Status StagingLanes::Copy(void* target, const void* source, int64_t size_bytes, const Lane& lane) const {
  RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, lane.stream.get()),
                           absl::StrCat("copy ", size_bytes, " bytes"), device_));
  return lane.stream.Synchronize();
}

}  // namespace paramshard::gpu
