#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/job_list.h"
#include "kernels/optim/orthogonalizer_kernels.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreadsOfJob = 256;
static_assert(kNormParts == kThreadsOfJob, "NormalizeJob: a thread reads a part");

// Neighbours that a thread reads at a time, 16 bytes, of each of several rows.
constexpr int kVector = 8;
constexpr int kRowsAtOnce = 4;
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

// Rows of a matrix from one that are `step` rows apart, and columns of this thread.
struct Walk {
  // Calls `visit(row, first, count)` for kRowsAtOnce rows at a time, whose neighbours from the column `first` on are this
  // thread's; rows may lie behind the last one.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    for (int64_t first = int64_t{threadIdx.x} * kVector; first < columns; first += kThreadsOfJob * kVector) {
      const int count = static_cast<int>(columns - first < kVector ? columns - first : kVector);
      for (int64_t row = begin; row < rows; row += kRowsAtOnce * step) visit(row, first, count);
    }
  }

  int64_t begin;
  int64_t step;
  int64_t rows;
  int64_t columns;
};

__device__ Vector Load(const uint16_t* data, int count, bool is_aligned) {
  if (is_aligned && count == kVector) return *reinterpret_cast<const Vector*>(data);
  Vector loaded = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) loaded.elements[i] = data[i];
  }
  return loaded;
}

__device__ void Store(const Vector& stored, int count, bool is_aligned, uint16_t* data) {
  if (is_aligned && count == kVector) {
    *reinterpret_cast<Vector*>(data) = stored;
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) data[i] = stored.elements[i];
  }
}

// Returns neighbours of kRowsAtOnce rows; zeros behind the last row.
__device__ void LoadRows(const BFloat16Matrix& matrix, int64_t row, int64_t step, int64_t first, int count,
                         bool is_aligned, Vector (&loaded)[kRowsAtOnce]) {
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int64_t next = row + r * step;
    loaded[r] = next < matrix.rows ? Load(matrix.data + next * matrix.stride + first, count, is_aligned) : Vector{};
  }
}

// A block adds the squares of every kNormParts-th row.
struct SquaresJob {
  static constexpr int kThreads = kThreadsOfJob;
  static constexpr int kBlocksAtOnce = 4;

  __device__ void Run(uint32_t block) const {
    const bool is_aligned = IsAligned(matrix.data, matrix.stride);
    double sum = 0;
    Walk{block, kNormParts, matrix.rows, matrix.columns}.ForEach([&](int64_t row, int64_t first, int count) {
      Vector loaded[kRowsAtOnce];
      LoadRows(matrix, row, kNormParts, first, count, is_aligned, loaded);
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const double element = DecodeBFloat16(loaded[r].elements[i]);
          sum += element * element;
        }
      }
    });
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
    Walk{block, blocks, matrix.rows, matrix.columns}.ForEach([&](int64_t row, int64_t first, int count) {
      Vector loaded[kRowsAtOnce];
      LoadRows(matrix, row, blocks, first, count, is_aligned, loaded);
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int64_t next = row + r * blocks;
        if (next >= matrix.rows) break;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          loaded[r].elements[i] = EncodeBFloat16(DecodeBFloat16(loaded[r].elements[i]) / divisor);
        }
        Store(loaded[r], count, is_aligned, normalized + next * normalized_stride + first);
      }
    });
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
