#include "common/model/model_spec.h"

#include <functional>
#include <numeric>
#include "kernels/formats/format.h"

namespace paramshard {

Encoding EncodingOf(const EncodingSpec& spec) {
  const Format format = spec.format.value_or(Format::kFP32);
  return {.format = format,
          .element = spec.element.value_or(DefaultElement(format)),
          .power_of_two_scales = spec.power_of_two_scales.value_or(DefaultPowerOfTwoScales(format))};
}

int64_t ParameterSpec::rows() const {
  if (shape.empty()) return 1;
  return std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>());
}

}  // namespace paramshard
