// The way between a device and host memory that is not pinned.
#ifndef PARAMSHARD_KERNELS_GPU_STAGING_H_
#define PARAMSHARD_KERNELS_GPU_STAGING_H_

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

// Some lanes, each a pinned buffer with a stream of its own: while one caller works on what has come, the others' bytes
// are on their way. Copies straight from or to memory that is not pinned run at a fifth of the link's speed, and
// pinning all of it would take as long as copying.
//
// Thread-safe. A call takes a lane, and waits while none is free: for no longer than others' copies and sinks take.
class StagingLanes {
 public:
  // Pins count x lane_bytes.
  static absl::StatusOr<std::unique_ptr<StagingLanes>> Create(int device, int count, int64_t lane_bytes);
  StagingLanes(const StagingLanes&) = delete;
  StagingLanes& operator=(const StagingLanes&) = delete;
  // The device is not broken: then it would wait for work that may never end.
  ~StagingLanes() = default;

  // Gives `sink` the bytes of device memory in order, in pieces of at most a lane, which it may read until it returns.
  // It makes no call on these lanes. Errors of AwaitStream.
  using Sink = absl::FunctionRef<void(absl::Span<const uint8_t>)>;
  absl::Status Read(const uint8_t* data, int64_t size_bytes, Sink sink);
  // Copies to device memory; the bytes are there when it returns.
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes);

 private:
  struct Lane {
    PinnedArray<uint8_t> buffer;
    Stream stream;
  };
  // A lane for as long as a call has it.
  class Turn;

  StagingLanes(int device, int64_t lane_bytes) : device_(device), lane_bytes_(lane_bytes) {}
  absl::Status Copy(void* target, const void* source, int64_t size_bytes, const Lane& lane) const;
  bool HasFree() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !free_.empty(); }

  const int device_;
  const int64_t lane_bytes_;
  std::vector<Lane> lanes_;  // constant after Create
  absl::Mutex mu_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mu_);  // the one that was used last is last: its buffer is in a cache
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STAGING_H_
