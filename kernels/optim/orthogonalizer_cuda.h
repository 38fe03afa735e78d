// Orthogonalization on a GPU (orthogonalizer.h), with the products of cuBLASLt.
#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/optim/orthogonalizer.h"

namespace paramshard::gpu {

// Enqueues its work on `stream`, which outlives it. Matrices are memory of the device. Keeps memory for the products of
// the largest matrix, two of its size and two Gram matrices, and 32 MiB for the library. It takes them at once for
// `expected`, of which it reads the shapes, so that no step of these fails for want of memory; a larger matrix waits for
// the stream.
absl::StatusOr<std::unique_ptr<Orthogonalizer>> MakeCudaOrthogonalizer(const CublasLt& library, int device,
                                                                       cudaStream_t stream,
                                                                       absl::Span<const BFloat16Matrix> expected = {});

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_CUDA_H_
