#include "client/examples/rms_norm.h"

#include <algorithm>
#include <cmath>

namespace paramshard::examples {
namespace {

constexpr float kEpsilon = 1e-5f;

float InverseRms(absl::Span<const float> row) {
  float sum = 0.0f;
  for (float value : row) sum += value * value;
  return 1.0f / std::sqrt(sum / static_cast<float>(row.size()) + kEpsilon);
}

}  // namespace

void RmsNormForward(absl::Span<const float> input, absl::Span<const float> gain, absl::Span<float> output) {
  for (size_t begin = 0; begin < input.size(); begin += gain.size()) {
    const float inverse = InverseRms(input.subspan(begin, gain.size()));
    for (size_t j = 0; j < gain.size(); ++j) output[begin + j] = input[begin + j] * inverse * gain[j];
  }
}

void RmsNormBackward(absl::Span<const float> input, absl::Span<const float> gain,
                     absl::Span<const float> output_gradient, absl::Span<float> input_gradient,
                     absl::Span<float> gain_gradient) {
  std::fill(gain_gradient.begin(), gain_gradient.end(), 0.0f);
  for (size_t begin = 0; begin < input.size(); begin += gain.size()) {
    const absl::Span<const float> row = input.subspan(begin, gain.size());
    const absl::Span<const float> gradient = output_gradient.subspan(begin, gain.size());
    const float inverse = InverseRms(row);
    float along = 0.0f;  // of the gradient, the part that only scales the row
    for (size_t j = 0; j < gain.size(); ++j) {
      along += gradient[j] * gain[j] * row[j];
      gain_gradient[j] += gradient[j] * row[j] * inverse;
    }
    along *= inverse * inverse / static_cast<float>(gain.size());
    for (size_t j = 0; j < gain.size(); ++j)
      input_gradient[begin + j] += inverse * (gradient[j] * gain[j] - row[j] * along);
  }
}

}  // namespace paramshard::examples
