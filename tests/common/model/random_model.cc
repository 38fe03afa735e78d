#include "tests/common/model/random_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/common/model/reference_format.h"

namespace paramshard {

ParameterSpec MakeParameter(std::string name, std::vector<int64_t> shape, Format format) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.encoding.format = format;
  return spec;
}

ModelSpec RandomModel::Spec() {
  ModelSpec spec;
  spec.name = "random";
  const int64_t units = Integer(1, 5);
  for (int i = 0; i < units; ++i) spec.units.push_back(Unit(i));
  spec.groups.resize(1);
  spec.small_parameter_bytes = OneIn(4) ? 0 : Integer(1, 3000);
  spec.gather_slots = static_cast<int>(Integer(1, 5));
  spec.large_gather_slots = static_cast<int>(Integer(1, spec.gather_slots));
  spec.gradient_slots = static_cast<int>(Integer(1, 4));
  spec.accumulator_type = OneIn(3) ? GradientType::kBF16 : GradientType::kFP32;
  if (spec.accumulator_type == GradientType::kFP32 && OneIn(3)) spec.pushes_per_step = static_cast<int>(Integer(1, 3));
  return spec;
}

void RandomModel::OwnSome(ModelSpec& spec) {
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (OneIn(2)) parameter.placement = Placement::kOwned;
    }
  }
}

int RandomModel::Ranks() {
  if (OneIn(2)) return 1 << Integer(0, 6);
  return static_cast<int>(Integer(1, 64));
}

std::vector<int64_t> RandomModel::Shape() {
  switch (Integer(0, 5)) {
    case 0:
      return {};
    case 1:
      return {Integer(1, 600)};
    case 2:
      return {Integer(1, 700), Integer(1, 70)};
    case 3:
      return {Integer(1, 6), Integer(1, 40), Integer(1, 60)};
    case 4:
      return {Integer(1, 4), Integer(1, 6), Integer(1, 20), Integer(1, 40)};
    default:
      return {Integer(1, 3), 1, Integer(1, 4), Integer(1, 20), Integer(1, 40)};
  }
}

ParameterSpec RandomModel::Parameter(std::string name) {
  const auto& formats = AllFormats();
  ParameterSpec spec =
      MakeParameter(std::move(name), Shape(), formats[Integer(0, static_cast<int64_t>(formats.size()) - 1)].format);
  if (OneIn(2)) spec.gradient_type = GradientType::kBF16;
  spec.trainable = !OneIn(4);
  return spec;
}

UnitSpec RandomModel::Unit(int index) {
  UnitSpec unit;
  unit.name = absl::StrCat("unit", index);
  unit.reshard_after_forward = !OneIn(3);
  const int64_t parameters = Integer(1, 6);
  for (int i = 0; i < parameters; ++i) {
    unit.parameters.push_back(Parameter(absl::StrCat(unit.name, ".", i)));
  }
  return unit;
}

}  // namespace paramshard
