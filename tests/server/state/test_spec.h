// Small model specs for tests.
#ifndef PARAMSHARD_TESTS_SERVER_STATE_TEST_SPEC_H_
#define PARAMSHARD_TESTS_SERVER_STATE_TEST_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

v1::ParameterSpec MakeParameter(std::string name, std::vector<int64_t> shape, v1::Format format = v1::FORMAT_FP32);
// Returns the parameter with an owner for each of its matrices.
v1::ParameterSpec Owned(v1::ParameterSpec parameter);
v1::UnitSpec MakeUnit(std::string name, std::vector<v1::ParameterSpec> parameters);

// All parameters large, one group, and no more than the units say.
v1::ModelSpec MakeSpec(std::string name, std::vector<v1::UnitSpec> units);

// Ends the test program when the spec is refused.
ModelSpec Parse(const v1::ModelSpec& proto);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_STATE_TEST_SPEC_H_
