// Splitting and joining masters on a GPU: the bytes of SplitMasters() and JoinMasters() (master_remainder.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::gpu {

// Enqueues writing the upper halves and the remainders of `count` values, or putting them together. Memory of the
// current device, aligned for its elements.
absl::Status SplitMaster(const float* values, int64_t count, uint16_t* upper, int16_t* remainder, cudaStream_t stream);
absl::Status JoinMaster(const uint16_t* upper, const int16_t* remainder, int64_t count, float* values,
                        cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_CUDA_H_
