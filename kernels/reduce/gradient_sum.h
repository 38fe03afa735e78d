// Summing the gradients of several ranks into an accumulator, in a fixed order.

#ifndef PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_
#define PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/reduce/gradient.h"
#include "kernels/reduce/sum_of_squares.h"

namespace paramshard {

// For each of `count` elements: s = ((source[0] + source[1]) + source[2]) + ... in float32, sources in rank order, then
// accumulator = s if `overwrite`, else accumulator + s. It is stored as float32, with NaN as 0x7fc00000, or rounded
// once more, to BF16: to nearest even, NaN 0x7fff. A single source keeps its -0.
//
// A BF16 accumulator loses bits at each sum: trainers push models with BF16 accumulators once per step.
//
// Sources hold `count` elements of `type` each, aligned for it, and do not overlap the accumulator, which is not read
// if `overwrite`. Requires at least one source.
void SumGradients(absl::Span<const void* const> sources, GradientType type, int64_t count, bool overwrite,
                  MutableGradient accumulator);

// The same; returns the sum of squares of the accumulator as it is stored afterwards.
SquareSum SumGradientsAndSquares(absl::Span<const void* const> sources, GradientType type, int64_t count,
                                 bool overwrite, MutableGradient accumulator);

// SumOfSquares() (sum_of_squares.h) of gradients of either type, as float32.
SquareSum SumOfSquares(ConstGradient gradients, int64_t count);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_H_
