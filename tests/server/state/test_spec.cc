#include "tests/server/state/test_spec.h"

#include <utility>

#include "common/model/model_spec_proto.h"
#include "kernels/base/check.h"

namespace paramshard::server {

v1::ParameterSpec MakeParameter(std::string name, std::vector<int64_t> shape, v1::Format format) {
  v1::ParameterSpec parameter;
  parameter.set_name(std::move(name));
  parameter.mutable_shape()->Assign(shape.begin(), shape.end());
  parameter.set_format(format);
  return parameter;
}

v1::ParameterSpec Owned(v1::ParameterSpec parameter) {
  parameter.set_placement(v1::PLACEMENT_OWNED);
  return parameter;
}

v1::UnitSpec MakeUnit(std::string name, std::vector<v1::ParameterSpec> parameters) {
  v1::UnitSpec unit;
  unit.set_name(std::move(name));
  unit.mutable_parameters()->Assign(parameters.begin(), parameters.end());
  return unit;
}

v1::ModelSpec MakeSpec(std::string name, std::vector<v1::UnitSpec> units) {
  v1::ModelSpec spec;
  spec.set_name(std::move(name));
  spec.mutable_units()->Assign(units.begin(), units.end());
  spec.set_small_parameter_bytes(0);
  return spec;
}

ModelSpec Parse(const v1::ModelSpec& proto) {
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  PARAMSHARD_CHECK(spec.ok());
  return *std::move(spec);
}

}  // namespace paramshard::server
