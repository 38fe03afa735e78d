#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/job_list.h"
#include "kernels/optim/orthogonalizer_kernels.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreadsOfJob = 256;
static_assert(kNormParts == kThreadsOfJob, "NormalizeJob: a thread reads a part");

// Neighbours that a thread reads at a time: 16 bytes.
constexpr int kVector = 8;
struct alignas(16) Vector {
  uint16_t elements[kVector];
};

// Returns the sum of the values of all threads to each of them: a binary tree.
__device__ double SumOverBlock(double value) {
  __shared__ double values[kThreadsOfJob];
  values[threadIdx.x] = value;
  for (int width = kThreadsOfJob / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) values[threadIdx.x] += values[threadIdx.x + width];
  }
  __syncthreads();
  return values[0];
}

__device__ bool IsAligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(Vector) == 0 && stride % kVector == 0;
}

// Calls `visit(first, count)` for the neighbours of a row that are this thread's.
template <typename Visit>
__device__ void ForEachVector(int64_t columns, const Visit& visit) {
  for (int64_t i = int64_t{threadIdx.x} * kVector; i < columns; i += kThreadsOfJob * kVector) {
    visit(i, static_cast<int>(columns - i < kVector ? columns - i : kVector));
  }
}

__device__ Vector Load(const uint16_t* data, int count, bool is_aligned) {
  if (is_aligned && count == kVector) return *reinterpret_cast<const Vector*>(data);
  Vector loaded = {};
  for (int i = 0; i < count; ++i) loaded.elements[i] = data[i];
  return loaded;
}

__device__ void Store(const Vector& stored, int count, bool is_aligned, uint16_t* data) {
  if (is_aligned && count == kVector) {
    *reinterpret_cast<Vector*>(data) = stored;
    return;
  }
  for (int i = 0; i < count; ++i) data[i] = stored.elements[i];
}

// A block adds the squares of every kNormParts-th row.
struct SquaresJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;

  __device__ void Run(uint32_t block) const {
    const bool is_aligned = IsAligned(matrix.data, matrix.stride);
    double sum = 0;
    for (int64_t row = block; row < matrix.rows; row += kNormParts) {
      const uint16_t* const elements = matrix.data + row * matrix.stride;
      ForEachVector(matrix.columns, [&](int64_t first, int count) {
        const Vector vector = Load(elements + first, count, is_aligned);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const double element = DecodeBFloat16(vector.elements[i]);
          sum += element * element;
        }
      });
    }
    sum = SumOverBlock(sum);
    if (threadIdx.x == 0) parts[block] = sum;
  }

  BFloat16Matrix matrix;
  double* parts;
};

struct NormalizeJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;
  static constexpr int64_t kMostBlocks = 1024;

  __device__ void Run(uint32_t block) const {
    const auto norm = static_cast<float>(sqrt(SumOverBlock(parts[threadIdx.x])));
    const float divisor = DecodeBFloat16(max(EncodeBFloat16(norm), EncodeBFloat16(epsilon)));
    const bool is_aligned = IsAligned(matrix.data, matrix.stride) && IsAligned(normalized, normalized_stride);
    for (int64_t row = block; row < matrix.rows; row += blocks) {
      const uint16_t* const from = matrix.data + row * matrix.stride;
      uint16_t* const to = normalized + row * normalized_stride;
      ForEachVector(matrix.columns, [&](int64_t first, int count) {
        Vector vector = Load(from + first, count, is_aligned);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          vector.elements[i] = EncodeBFloat16(DecodeBFloat16(vector.elements[i]) / divisor);
        }
        Store(vector, count, is_aligned, to + first);
      });
    }
  }

  BFloat16Matrix matrix;
  const double* parts;
  uint16_t* normalized;
  int64_t normalized_stride;
  float epsilon;
  int64_t blocks;
};

}  // namespace

absl::Status Normalize(absl::Span<const Normalization> matrices, float epsilon, cudaStream_t stream) {
  JobList squares;
  JobList quotients;
  for (const Normalization& each : matrices) {
    const int64_t blocks = std::min(each.matrix.rows, NormalizeJob::kMostBlocks);
    squares.Add(SquaresJob{each.matrix, each.parts}, kNormParts);
    quotients.Add(NormalizeJob{each.matrix, each.parts, each.normalized, each.normalized_stride, epsilon, blocks},
                  blocks);
  }
  RETURN_IF_ERROR(squares.Launch("sum the squares of matrices", stream));
  return quotients.Launch("normalize matrices", stream);
}

}  // namespace paramshard::gpu
