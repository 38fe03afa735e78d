// Many copies enqueued by one call, for the copy engines.
#ifndef PARAMSHARD_KERNELS_GPU_BATCH_COPY_H_
#define PARAMSHARD_KERNELS_GPU_BATCH_COPY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace paramshard::gpu {

// A list of copies between addresses that the stream's device reaches. They may run in any order and beside each other.
// Reusable.
class BatchCopy {
 public:
  // `size_bytes` 0 adds nothing.
  void Add(void* target, const void* source, int64_t size_bytes);

  // Enqueues all of them, asking for engines that run beside kernels. Not on the default stream.
  absl::Status Enqueue(cudaStream_t stream) const;

  bool empty() const { return targets_.empty(); }

 private:
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_BATCH_COPY_H_
