// Many copies inside one GPU by one kernel: a few microseconds of the host for any number of copies.
#ifndef PARAMSHARD_KERNELS_COPY_RANGE_COPIES_CUDA_H_
#define PARAMSHARD_KERNELS_COPY_RANGE_COPIES_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace paramshard::gpu {

struct RangeCopy {
  void* target = nullptr;
  const void* source = nullptr;
  int64_t bytes = 0;
};

// Enqueues the copies, of any alignment and in no order among each other; targets overlap nothing. Ranges of 0 bytes
// are fine.
absl::Status CopyRanges(absl::Span<const RangeCopy> copies, cudaStream_t stream);

// Loads the kernels on the current device. A kernel that is loaded at its first launch waits for streams that wait.
absl::Status LoadCopyRanges();

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_COPY_RANGE_COPIES_CUDA_H_
