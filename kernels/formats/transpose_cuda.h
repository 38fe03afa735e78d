// Transposed data of 8-bit and 4-bit formats on a GPU: the bytes of TransposeBytes() and TransposeNibbles()
// (transpose.h).

#ifndef PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace paramshard::gpu {

// A rows x cols matrix of bytes or nibbles, and where its transpose is to lie.
struct Transposition {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  uint8_t* out = nullptr;
};

// Enqueue writing transposes, in one launch for up to 16 that are alike. Memory of the current device, of any
// alignment. The up to 3 bytes before and after the data, as far as they share 4 aligned ones with it, are read.
//
// Fastest where all rows, of the matrix and of its transpose, begin at multiples of 16 bytes.
absl::Status TransposeBytes(absl::Span<const Transposition> matrices, cudaStream_t stream);
absl::Status TransposeNibbles(absl::Span<const Transposition> matrices, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_CUDA_H_
