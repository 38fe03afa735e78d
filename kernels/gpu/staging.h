// Copies between a device and host memory that is not pinned.
#ifndef PARAMSHARD_KERNELS_GPU_STAGING_H_
#define PARAMSHARD_KERNELS_GPU_STAGING_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {

// Lanes of two pinned buffers, each buffer with a stream: while a caller works on the bytes that have arrived, its next
// bytes and other callers' bytes are in flight. Direct copies from or to memory that is not pinned run at a fifth of
// the link's speed, and pinning all memory would take as long as copying it.
//
// Thread-safe. A call takes a lane, and waits while none is free: no longer than copies and sinks of other calls take.
class StagingLanes {
 public:
  // Pins 2 x count x buffer_bytes.
  static absl::StatusOr<std::unique_ptr<StagingLanes>> Create(int device, int count, int64_t buffer_bytes);
  StagingLanes(const StagingLanes&) = delete;
  StagingLanes& operator=(const StagingLanes&) = delete;
  // The device is not broken: then it would wait for work that may never end.
  ~StagingLanes() = default;

  // Passes the bytes of device memory to `sink` in order, in pieces of at most one buffer. `sink` may read a piece
  // until it returns, and must not call these lanes. Returns errors of AwaitStream().
  using Sink = absl::FunctionRef<void(absl::Span<const uint8_t>)>;
  absl::Status Read(const uint8_t* data, int64_t size_bytes, Sink sink);
  // Copies to device memory; the bytes are there when it returns.
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes);

 private:
  struct Buffer {
    PinnedArray<uint8_t> memory;
    Stream stream;
  };
  using Lane = std::array<Buffer, 2>;
  // A lane for as long as a call has it.
  class Turn;

  StagingLanes(int device, int64_t buffer_bytes) : device_(device), buffer_bytes_(buffer_bytes) {}
  static absl::StatusOr<Buffer> MakeBuffer(int device, int64_t size_bytes);
  int64_t Pieces(int64_t size_bytes) const { return (size_bytes + buffer_bytes_ - 1) / buffer_bytes_; }
  // Returns the size of one of the pieces that `size_bytes` are cut into.
  int64_t PieceBytes(int64_t piece, int64_t size_bytes) const {
    return std::min(buffer_bytes_, size_bytes - piece * buffer_bytes_);
  }
  absl::Status Start(void* target, const void* source, int64_t size_bytes, const Stream& stream) const;
  bool HasFree() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !free_.empty(); }

  const int device_;
  const int64_t buffer_bytes_;
  std::vector<Lane> lanes_;  // constant after Create
  absl::Mutex mu_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mu_);  // the one that was used last is last: it is in a cache
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STAGING_H_
