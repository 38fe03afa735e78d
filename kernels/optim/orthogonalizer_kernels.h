// Normalization of matrices of BF16 elements on the GPU, before the Newton-Schulz iteration (orthogonalizer.h).
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/optim/orthogonalizer_memory.h"

namespace paramshard::gpu {

struct Normalization {
  BFloat16Matrix matrix;
  double* parts = nullptr;  // kNormParts
  // The same size as the matrix; in its place or apart.
  uint16_t* normalized = nullptr;
  int64_t normalized_stride = 0;
};

// Enqueues the quotients of each matrix and its norm, but at least epsilon. The sum of squares has one order.
absl::Status Normalize(absl::Span<const Normalization> matrices, float epsilon, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_KERNELS_H_
