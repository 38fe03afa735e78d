#include "server/data_plane/command_header.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace paramshard::server {
namespace {

// A unit of 80 parameters, p0 to p79.
ModelSpec WideModel() {
  ModelSpec model;
  model.units.resize(1);
  model.units[0].name = "wide";
  for (int i = 0; i < 80; ++i) {
    ParameterSpec parameter;
    parameter.name = "p" + std::to_string(i);
    model.units[0].parameters.push_back(std::move(parameter));
  }
  return model;
}

CommandHeader Without(const std::vector<int32_t>& absent) {
  ReduceCall call;
  call.number = 3;
  call.absent = absent;
  return CommandHeader::Of(call);
}

TEST(CommandHeaderTest, PushesWithoutDifferentParametersDiffer) {
  const std::vector<std::vector<int32_t>> sets = {{}, {0}, {1}, {0, 1}, {62}, {63}, {0, 63}, {64}, {63, 64}, {0, 79}};
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t j = 0; j < sets.size(); ++j) EXPECT_EQ(Without(sets[i]) == Without(sets[j]), i == j) << i << " " << j;
  }
}

TEST(CommandHeaderTest, NamesAbsentParametersAsFarAsItCan) {
  const ModelSpec model = WideModel();
  EXPECT_EQ(HeaderText(Without({}), model), "command 3 push(wide, gradient slot 0)");
  EXPECT_EQ(HeaderText(Without({0, 62}), model), "command 3 push(wide, gradient slot 0, without p0, p62)");
  EXPECT_EQ(HeaderText(Without({0, 63}), model), "command 3 push(wide, gradient slot 0, without some parameters)");
  CommandHeader unknown = Without({0});
  unknown.unit = 7;
  EXPECT_EQ(HeaderText(unknown, model), "command 3 push(unit 7, gradient slot 0, without some parameters)");
}

}  // namespace
}  // namespace paramshard::server
