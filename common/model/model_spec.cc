#include "common/model/model_spec.h"

#include <functional>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "kernels/formats/format.h"
#include "kernels/optim/optimizers.h"

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

std::optional<int> MostPushesPerStep(const ModelSpec& spec) {
  return spec.accumulator_type == GradientType::kBF16 ? 1 : spec.pushes_per_step;
}

std::string MomentNames(const std::vector<ParameterGroup>& groups, MomentKind kind) {
  std::vector<std::string> names;
  for (const ParameterGroup& group : groups) {
    const char* const name = MomentName(group.optimizer, kind);
    if (name != nullptr && !absl::c_linear_search(names, name)) names.emplace_back(name);
  }
  return absl::StrJoin(names, "+");
}

}  // namespace paramshard
