// Copies of small matrices of 32-bit words inside one GPU, with strides: scales of blocks, as products read them.
#ifndef PARAMSHARD_KERNELS_COPY_STRIDED_WORDS_CUDA_H_
#define PARAMSHARD_KERNELS_COPY_STRIDED_WORDS_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace paramshard::gpu {

// target[row * target_stride + col] = source[row * row_stride + col * col_stride], in words. Strides of 0 spread one.
struct StridedWords {
  const uint8_t* source = nullptr;  // of any alignment
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  uint32_t* target = nullptr;
  int64_t target_stride = 0;
};

// Enqueues the copies, in one launch for up to 16. Memory of the current device.
absl::Status CopyStridedWords(absl::Span<const StridedWords> copies, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_COPY_STRIDED_WORDS_CUDA_H_
