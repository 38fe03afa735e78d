// Transposed data of 8-bit and 4-bit formats on a GPU: the bytes of TransposeBytes() and TransposeNibbles()
// (transpose.h).

#ifndef PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard::gpu {

// Enqueue writing the transpose of a rows x cols matrix of bytes, or of nibbles. Memory of the current device, of any
// alignment. The up to 3 bytes before and after the data, as far as they share 4 aligned ones with it, are read.
//
// Fastest where all rows, of the matrix and of its transpose, begin at multiples of 16 bytes.
absl::Status TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream);
absl::Status TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
