#include "kernels/optim/orthogonalizer_memory.h"

#include <algorithm>

#include "kernels/base/align.h"
#include "kernels/products/operand_alignment.h"

namespace paramshard::gpu {
namespace {

// Elements of BF16 that rows in the orthogonalizer's memory begin at multiples of.
constexpr int64_t kRowAlignment = 64;
constexpr int64_t kElementBytes = sizeof(uint16_t);

int64_t SquareElements(const BFloat16Matrix& matrix) {
  const int64_t small = std::min(matrix.rows, matrix.columns);
  return small * StrideOf(small);
}

}  // namespace

int64_t StrideOf(int64_t columns) { return AlignUp(columns, kRowAlignment); }

bool IsOperand(const BFloat16Matrix& matrix) {
  return reinterpret_cast<uintptr_t>(matrix.data) % kOperandAlignment == 0 &&
         matrix.stride == StrideOf(matrix.columns) && matrix.columns * kElementBytes % kOperandAlignment == 0;
}

int64_t ProductBytes(const BFloat16Matrix& matrix) {
  if (matrix.rows == 0 || matrix.columns == 0) return 0;
  const int64_t copies = IsOperand(matrix) ? 1 : 2;
  const int64_t elements = copies * matrix.rows * StrideOf(matrix.columns) + 2 * SquareElements(matrix);
  return kNormBytes + elements * kElementBytes;
}

int64_t OrthogonalizerBytes(absl::Span<const BFloat16Matrix> matrices) {
  int64_t all = 0;  // at most kMostOrthogonalizerBytes
  int64_t largest = 0;
  for (const BFloat16Matrix& matrix : matrices) {
    const int64_t bytes = ProductBytes(matrix);
    all += std::min(bytes, kMostOrthogonalizerBytes - all);
    largest = std::max(largest, bytes);
  }
  return std::max(largest, all);
}

}  // namespace paramshard::gpu
