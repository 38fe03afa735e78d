// Transposed data of 4-bit formats on a GPU: the bytes of TransposeNibbles() (transpose.h). Those of 8-bit formats:
// codec_cuda.h.

#ifndef PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::gpu {

// Enqueues writing the transpose of a rows x cols matrix of nibbles. Memory of the current device, of any alignment.
absl::Status TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
