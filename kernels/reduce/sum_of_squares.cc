#include "kernels/reduce/sum_of_squares.h"

#include <algorithm>
#include <vector>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/reduce/gradient_sum.h"

namespace paramshard {
namespace {

constexpr int64_t kLanes = 256;
constexpr int64_t kChunk = kSquareSumChunk;

PARAMSHARD_ALWAYS_INLINE double Term(float value) { return static_cast<double>(value) * static_cast<double>(value); }
PARAMSHARD_ALWAYS_INLINE double Term(double chunk_sum) { return chunk_sum; }

PARAMSHARD_ALWAYS_INLINE double CombineLanes(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] = lanes[j] + lanes[j + width];
  }
  return lanes[0];
}

template <typename Value>
PARAMSHARD_ALWAYS_INLINE void AddRound(const Value* __restrict values, int64_t count, double* __restrict lanes) {
  for (int64_t j = 0; j < count; ++j) lanes[j] = lanes[j] + Term(values[j]);
}

template <typename Value>
PARAMSHARD_ALWAYS_INLINE double SumChunk(const Value* values, int64_t count) {
  double lanes[kLanes] = {};
  int64_t first = 0;
  for (; first + kLanes <= count; first += kLanes) AddRound(values + first, kLanes, lanes);
  AddRound(values + first, count - first, lanes);
  return CombineLanes(lanes);
}

PARAMSHARD_ALWAYS_INLINE int64_t CountNonFinite(const float* values, int64_t count) {
  // 32-bit, as a chunk needs no more and vectors hold twice as many of them.
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    found += (FloatBits(values[i]) & kFloatMagnitudeMask) >= kFloatInfinityBits ? 1 : 0;
  }
  return found;
}

// Adds up one chunk and returns the number of non-finite values.
PARAMSHARD_SIMD_CLONES
int64_t SumSquaresOfChunk(const float* values, int64_t count, double& sum) {
  sum = SumChunk(values, count);
  return CountNonFinite(values, count);
}

std::vector<double> SumChunks(const std::vector<double>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<double> sums;
  for (int64_t first = 0; first < count; first += kChunk) {
    sums.push_back(SumChunk(values.data() + first, std::min(kChunk, count - first)));
  }
  return sums;
}

}  // namespace

void SquareSumBuilder::AddChunk(const float* values, int64_t count) {
  non_finite_ += SumSquaresOfChunk(values, count, chunk_sums_.emplace_back());
}

SquareSum SquareSumBuilder::Finish() const {
  if (chunk_sums_.empty()) return {};
  std::vector<double> sums = chunk_sums_;
  while (sums.size() > 1) sums = SumChunks(sums);
  return {sums.front(), non_finite_};
}

SquareSum SumOfSquares(const float* values, int64_t count) {
  SquareSumBuilder builder;
  for (int64_t first = 0; first < count; first += kChunk) {
    builder.AddChunk(values + first, std::min(kChunk, count - first));
  }
  return builder.Finish();
}

}  // namespace paramshard
