// Orthogonalization on a GPU (orthogonalizer.h).
#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/products/matrix_products.h"

namespace paramshard::gpu {

// Enqueues its work on `stream`, which outlives it. Matrices are memory of the device. The more matrices a Run() has, the
// better they fill the GPU. Takes `scratch_bytes` for products at once: with OrthogonalizerBytes() of the matrices that
// are to come (orthogonalizer_memory.h) no step of these fails for want of memory. More waits for the stream.
absl::StatusOr<std::unique_ptr<Orthogonalizer>> MakeCudaOrthogonalizer(std::unique_ptr<MatrixProducts> products,
                                                                       int device, cudaStream_t stream,
                                                                       int64_t scratch_bytes = 0);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
