#include "lab/bench/block_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace paramshard {

int64_t BlockElements() {
  int64_t elements = 0;
  for (const BlockWeight& weight : kBlockWeights) elements += weight.rows * weight.columns;
  return elements;
}

ModelSpec BlockSpec(const std::string& name, int blocks) {
  ModelSpec spec;
  spec.name = name;
  spec.gather_slots = 4;
  for (int block = 0; block < blocks; ++block) {
    UnitSpec unit;
    unit.name = absl::StrCat("block", block);
    for (const BlockWeight& weight : kBlockWeights) {
      ParameterSpec& parameter = unit.parameters.emplace_back();
      parameter.name = absl::StrCat(unit.name, ".", weight.name);
      parameter.shape = {weight.rows, weight.columns};
      parameter.encoding.format = Format::kFP8Block128x128;
      parameter.gradient_type = GradientType::kBF16;
      parameter.initial_value = {Initializer::kNormal, 0.0f, 0.02f};
    }
    spec.units.push_back(std::move(unit));
  }
  return spec;
}

}  // namespace paramshard
