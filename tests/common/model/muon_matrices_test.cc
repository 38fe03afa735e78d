#include "common/model/muon_matrices.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/trainer.pb.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

ParameterSpec Parameter(std::vector<int64_t> shape) {
  return {.name = "w",
          .shape = std::move(shape),
          .encoding = {.format = Format::kFP32},
          .optimizer = Optimizer::kMuonNesterov};
}

std::vector<ParameterGroup> Groups(MuonRate rate = MuonRate::kOriginal) {
  return {{.optimizer = Optimizer::kMuonNesterov, .muon = {.rate = rate}}};
}

std::vector<std::vector<int64_t>> PartsOf(const ParameterSpec& spec, RowRange rows) {
  std::vector<std::vector<int64_t>> parts;
  const std::optional<MuonMatrices> matrices = MuonMatricesOf(spec, Groups(), rows);
  for (const MuonMatrices::Part& part : matrices->parts) {
    parts.push_back({part.row, part.column, part.rows, part.columns});
  }
  return parts;
}

TEST(MuonMatricesTest, AStackIsItsLastTwoDimensions) {
  using Parts = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(PartsOf(Parameter({6, 4}), {0, 6}), (Parts{{0, 0, 6, 4}}));
  EXPECT_EQ(PartsOf(Parameter({2, 3, 5, 4}), {5, 15}), (Parts{{0, 0, 5, 4}, {5, 0, 5, 4}}));
  ParameterSpec split = Parameter({2, 6, 4});
  split.split_rows = {4, 2};
  EXPECT_EQ(PartsOf(split, {0, 12}), (Parts{{0, 0, 4, 4}, {4, 0, 2, 4}, {6, 0, 4, 4}, {10, 0, 2, 4}}));
  split = Parameter({4, 6});
  split.transposed = true;
  split.split_rows = {4, 2};
  EXPECT_EQ(PartsOf(split, {0, 4}), (Parts{{0, 0, 4, 4}, {0, 4, 4, 2}}));
}

TEST(MuonMatricesTest, OtherParametersHaveNone) {
  ParameterSpec frozen = Parameter({6, 4});
  frozen.trainable = false;
  EXPECT_EQ(MuonMatricesOf(frozen, Groups(), {0, 6}), std::nullopt);
  ParameterSpec other = Parameter({6, 4});
  other.optimizer = Optimizer::kLion;
  EXPECT_EQ(MuonMatricesOf(other, Groups(), {0, 6}), std::nullopt);
}

TEST(MuonMatricesTest, RatesAreThoseOfOutputsAndInputs) {
  ParameterSpec spec = Parameter({16, 4});
  EXPECT_DOUBLE_EQ(MuonRateFactor(spec, Groups()[0]), 2.0);
  spec.transposed = true;
  EXPECT_DOUBLE_EQ(MuonRateFactor(spec, Groups()[0]), 1.0);
  spec.transposed = false;
  spec.split_rows = {8, 8};
  EXPECT_DOUBLE_EQ(MuonRateFactor(spec, Groups(MuonRate::kSpectralUnclamped)[0]), std::sqrt(2.0));
}

TEST(MuonMatricesTest, WhatIsNoMatrixIsRefused) {
  const auto check = [](const ParameterSpec& spec, MuonRate rate = MuonRate::kOriginal) {
    return CheckMuonParameter(spec, Groups(rate)[0]);
  };
  EXPECT_OK(check(Parameter({6, 4})));
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {6}}) {
    EXPECT_THAT(check(Parameter(shape)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a matrix")));
  }
  ParameterSpec split = Parameter({6, 4});
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{3}, {3, 4}, {6, 0}, {7, -1}}) {
    split.split_rows = rows;
    EXPECT_THAT(check(split), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add up to 6 outputs")));
  }
  split.split_rows = {4, 2};
  EXPECT_OK(check(split));
  EXPECT_THAT(check(split, MuonRate::kSpectralUnclamped),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parts with one learning rate")));
}

TEST(MuonMatricesTest, MatricesHaveOwnersUnlessTheyAreFrozen) {
  v1::ModelSpec proto;
  proto.set_name("m");
  proto.add_groups()->set_optimizer(v1::OPTIMIZER_MUON_NESTEROV);
  proto.set_small_parameter_bytes(0);
  v1::UnitSpec& unit = *proto.add_units();
  unit.set_name("u");
  v1::ParameterSpec& parameter = *unit.add_parameters();
  parameter.set_name("w");
  parameter.add_shape(64);
  parameter.add_shape(4);
  parameter.set_format(v1::FORMAT_FP32);
  ASSERT_OK_AND_ASSIGN(ModelSpec spec, ParseModelSpec(proto));
  EXPECT_EQ(spec.units[0].parameters[0].placement, Placement::kOwned);
  parameter.set_placement(v1::PLACEMENT_CUT);
  EXPECT_THAT(ParseModelSpec(proto),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter w: want placement OWNED or none")));
  parameter.set_trainable(false);
  ASSERT_OK_AND_ASSIGN(spec, ParseModelSpec(proto));
  EXPECT_EQ(spec.units[0].parameters[0].placement, Placement::kCut);
}

}  // namespace
}  // namespace paramshard
