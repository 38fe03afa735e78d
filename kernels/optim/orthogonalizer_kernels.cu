#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/status.h"
#include "kernels/optim/orthogonalizer_kernels.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
static_assert(kNormParts == kThreads, "Normalize: a thread reads a part");

// Returns the sum of the values of all threads to each of them: a binary tree.
__device__ double SumOverBlock(double value) {
  __shared__ double values[kThreads];
  values[threadIdx.x] = value;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) values[threadIdx.x] += values[threadIdx.x + width];
  }
  __syncthreads();
  return values[0];
}

// A block adds the squares of every kNormParts-th row.
__global__ void __launch_bounds__(kThreads) SumSquaresKernel(BFloat16Matrix matrix, double* parts) {
  double sum = 0;
  for (int64_t row = blockIdx.x; row < matrix.rows; row += kNormParts) {
    const uint16_t* const elements = matrix.data + row * matrix.stride;
    for (int64_t i = threadIdx.x; i < matrix.columns; i += kThreads) {
      const double element = DecodeBFloat16(elements[i]);
      sum += element * element;
    }
  }
  sum = SumOverBlock(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    NormalizeKernel(BFloat16Matrix matrix, float epsilon, const double* parts, uint16_t* normalized, int64_t stride) {
  const auto norm = static_cast<float>(sqrt(SumOverBlock(parts[threadIdx.x])));
  const float divisor = DecodeBFloat16(max(EncodeBFloat16(norm), EncodeBFloat16(epsilon)));
  for (int64_t row = blockIdx.x; row < matrix.rows; row += gridDim.x) {
    const uint16_t* const from = matrix.data + row * matrix.stride;
    uint16_t* const to = normalized + row * stride;
    for (int64_t i = threadIdx.x; i < matrix.columns; i += kThreads) {
      to[i] = EncodeBFloat16(DecodeBFloat16(from[i]) / divisor);
    }
  }
}

}  // namespace

absl::Status Normalize(const BFloat16Matrix& matrix, float epsilon, double* parts, uint16_t* normalized,
                       int64_t normalized_stride, cudaStream_t stream) {
  SumSquaresKernel<<<kNormParts, kThreads, 0, stream>>>(matrix, parts);
  constexpr int64_t kMostBlocks = 1024;
  const auto blocks = static_cast<unsigned>(matrix.rows < kMostBlocks ? matrix.rows : kMostBlocks);
  NormalizeKernel<<<blocks, kThreads, 0, stream>>>(matrix, epsilon, parts, normalized, normalized_stride);
  return LaunchStatus("normalize a matrix");
}

}  // namespace paramshard::gpu
