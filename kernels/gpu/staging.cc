#include "kernels/gpu/staging.h"

#include <cuda_runtime.h>

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

  // Pieces of a call take turns.
  Buffer& buffer(int64_t piece) const { return (*lane_)[piece % 2]; }

 private:
  StagingLanes& lanes_;
  Lane* lane_ = nullptr;
};

absl::StatusOr<StagingLanes::Buffer> StagingLanes::MakeBuffer(int device, int64_t size_bytes) {
  ASSIGN_OR_RETURN(PinnedArray<uint8_t> memory, PinnedArray<uint8_t>::Create(size_bytes));
  ASSIGN_OR_RETURN(Stream stream, Stream::Create(device));
  return Buffer{std::move(memory), std::move(stream)};
}

absl::StatusOr<std::unique_ptr<StagingLanes>> StagingLanes::Create(int device, int count, int64_t buffer_bytes) {
  const DeviceScope scope(device);
  std::unique_ptr<StagingLanes> staging(new StagingLanes(device, buffer_bytes));
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(Buffer first, MakeBuffer(device, buffer_bytes));
    ASSIGN_OR_RETURN(Buffer second, MakeBuffer(device, buffer_bytes));
    staging->lanes_.push_back({std::move(first), std::move(second)});
  }
  const absl::MutexLock lock(&staging->mu_);
  for (Lane& lane : staging->lanes_) staging->free_.push_back(&lane);
  return staging;
}

absl::Status StagingLanes::Read(const uint8_t* data, int64_t size_bytes, Sink sink) {
  const DeviceScope scope(device_);
  const Turn turn(*this);
  const auto start = [&](int64_t piece) {
    const Buffer& buffer = turn.buffer(piece);
    return piece == Pieces(size_bytes) ? absl::OkStatus()
                                       : Start(buffer.memory.data(), data + piece * buffer_bytes_,
                                               PieceBytes(piece, size_bytes), buffer.stream);
  };
  absl::Status started = start(0);
  for (int64_t piece = 0; piece < Pieces(size_bytes) && started.ok(); ++piece) {
    started = start(piece + 1);
    // Waits even if the next copy failed: a buffer that is given back is not written to any more.
    const Buffer& buffer = turn.buffer(piece);
    RETURN_IF_ERROR(buffer.stream.Synchronize());
    sink(absl::MakeConstSpan(buffer.memory.data(), PieceBytes(piece, size_bytes)));
  }
  return started;
}

absl::Status StagingLanes::Write(uint8_t* data, absl::Span<const uint8_t> bytes) {
  const auto size_bytes = static_cast<int64_t>(bytes.size());
  const DeviceScope scope(device_);
  const Turn turn(*this);
  absl::Status status;
  for (int64_t piece = 0; piece < Pieces(size_bytes) && status.ok(); ++piece) {
    const Buffer& buffer = turn.buffer(piece);
    // The piece before the last one has left it.
    if (piece >= 2) RETURN_IF_ERROR(buffer.stream.Synchronize());
    const auto of_piece = bytes.subspan(piece * buffer_bytes_, PieceBytes(piece, size_bytes));
    std::memcpy(buffer.memory.data(), of_piece.data(), of_piece.size());
    status = Start(data + piece * buffer_bytes_, buffer.memory.data(), PieceBytes(piece, size_bytes), buffer.stream);
  }
  for (const int64_t piece : {0, 1}) RETURN_IF_ERROR(turn.buffer(piece).stream.Synchronize());
  return status;
}

absl::Status StagingLanes::Start(void* target, const void* source, int64_t size_bytes, const Stream& stream) const {
  return ToStatus(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, stream.get()),
                  absl::StrCat("copy ", size_bytes, " bytes"), device_);
}

}  // namespace paramshard::gpu
