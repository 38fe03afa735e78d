// Summing the gradients of several ranks into a float32 accumulator, in a fixed order.

#ifndef PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_
#define PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/reduce/sum_of_squares.h"

namespace paramshard {

// What a trainer writes into its gradient slot.
enum class GradientType : uint8_t { kFP32 = 1, kBF16 = 2 };

// Size in bytes of one gradient.
int64_t GradientBytes(GradientType type);

// For each of `count` elements: s = ((source[0] + source[1]) + source[2]) + ... in float32, sources in rank order, then
// accumulator = s when `overwrite`, else accumulator + s. A NaN is stored as 0x7fc00000. A single source keeps its -0.
//
// Sources hold `count` elements of `type` each, aligned for it, and do not overlap the accumulator, of which nothing is
// read when `overwrite`. Requires at least one source.
void SumGradients(absl::Span<const void* const> sources, GradientType type, int64_t count, bool overwrite,
                  float* accumulator);

// The same, and the sum of squares of the accumulator then: SumOfSquares() (sum_of_squares.h).
SquareSum SumGradientsAndSquares(absl::Span<const void* const> sources, GradientType type, int64_t count,
                                 bool overwrite, float* accumulator);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_
