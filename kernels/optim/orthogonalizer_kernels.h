// Normalization of a matrix of BF16 elements on the GPU, before the Newton-Schulz iteration (orthogonalizer.h).
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/optim/orthogonalizer.h"

namespace paramshard::gpu {

// Doubles that Normalize() needs for its sums.
inline constexpr int kNormParts = 256;

// Enqueues the quotients of the matrix and its norm, but at least epsilon; they go to `normalized`, of the same size,
// `normalized_stride` elements from row to row. The sum of squares has one order.
absl::Status Normalize(const BFloat16Matrix& matrix, float epsilon, double* parts, uint16_t* normalized,
                       int64_t normalized_stride, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_
