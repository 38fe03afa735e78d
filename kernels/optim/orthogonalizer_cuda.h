// Orthogonalization on a GPU (orthogonalizer.h).
#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/products/matrix_products.h"

namespace paramshard::gpu {

// Most bytes of memory for the products of several matrices at a time.
inline constexpr int64_t kMostOrthogonalizerBytes = int64_t{224} << 20;

// Enqueues its work on `stream`, which outlives it. Matrices are memory of the device. The more matrices a Run() has, the
// better they fill the GPU. Keeps memory for products: for each matrix one of its size (two, unless it has whole rows of
// a multiple of 64 elements) and two Gram matrices; kMostOrthogonalizerBytes at most, or what the largest matrix needs.
// It takes that at once for `expected`, of which it reads shapes and addresses, so that no step of these fails for want
// of memory; more waits for the stream.
absl::StatusOr<std::unique_ptr<Orthogonalizer>> MakeCudaOrthogonalizer(std::unique_ptr<MatrixProducts> products,
                                                                       int device, cudaStream_t stream,
                                                                       absl::Span<const BFloat16Matrix> expected = {});

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
