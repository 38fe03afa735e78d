// Normalization by the root mean square of a row (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019):
// output = input * gain / sqrt(mean(input^2) + 1e-5).
#ifndef PARAMSHARD_CLIENT_EXAMPLES_RMS_NORM_H_
#define PARAMSHARD_CLIENT_EXAMPLES_RMS_NORM_H_

#include "absl/types/span.h"

namespace paramshard::examples {

// Rows have gain.size() elements each.
void RmsNormForward(absl::Span<const float> input, absl::Span<const float> gain, absl::Span<float> output);

// Computes gradients from the gradient of the outputs: adds the inputs' gradient to `input_gradient`, sets the gain's.
void RmsNormBackward(absl::Span<const float> input, absl::Span<const float> gain,
                     absl::Span<const float> output_gradient, absl::Span<float> input_gradient,
                     absl::Span<float> gain_gradient);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_RMS_NORM_H_
