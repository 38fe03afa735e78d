#include "server/checkpoints/restore_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/common/model/random_model.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::Checked;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two units, one parameter of each kind of state.
ModelSpec Description() {
  ModelSpec spec{.name = "m"};
  spec.groups = {{.name = "all"}, {.name = "other", .optimizer = Optimizer::kAdam}};
  UnitSpec first{.name = "first"};
  first.parameters.push_back(MakeParameter("w", {4, 8}, Format::kFP8TensorDelayed));
  first.parameters.push_back(MakeParameter("halves", {6, 3}, Format::kBF16));
  first.parameters.back().master_type = MasterType::kBF16Remainder;
  UnitSpec second{.name = "second"};
  second.parameters.push_back(MakeParameter("frozen", {40, 8}, Format::kMXFP8));
  second.parameters.back().trainable = false;
  second.parameters.push_back(MakeParameter("kept", {5, 8}, Format::kFP32));
  second.parameters.back().trainable = false;
  second.parameters.back().master_type = MasterType::kFP32;
  spec.units = {first, second};
  return spec;
}

// Returns the plan for a model after a change, and a checkpoint of the model before it.
template <typename Change>
absl::StatusOr<RestorePlan> PlanAfter(Change change, const RestorePlan::Options& options = {}) {
  ModelSpec model = Description();
  change(model);
  return RestorePlan::Create(Checked(model), Checked(Description()), options);
}

ParameterSpec& W(ModelSpec& spec) { return spec.units[0].parameters[0]; }
ParameterSpec& Halves(ModelSpec& spec) { return spec.units[0].parameters[1]; }
ParameterSpec& Frozen(ModelSpec& spec) { return spec.units[1].parameters[0]; }
ParameterSpec& Kept(ModelSpec& spec) { return spec.units[1].parameters[1]; }

TEST(RestorePlanTest, TheSameModelTakesAllArraysAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter([](ModelSpec&) {}));
  ASSERT_EQ(plan.parameters().size(), 4u);
  for (const RestorePlan::Parameter& parameter : plan.parameters()) EXPECT_THAT(parameter.tensors, IsEmpty());
  EXPECT_THAT(plan.parameters()[0].arrays,
              ElementsAre(ArrayKind::kMaster, ArrayKind::kFirstMoment, ArrayKind::kSecondMoment));
  EXPECT_TRUE(plan.parameters()[0].keeps_scaling);
  EXPECT_THAT(plan.parameters()[1].arrays, ElementsAre(ArrayKind::kMaster, ArrayKind::kRemainder,
                                                       ArrayKind::kFirstMoment, ArrayKind::kSecondMoment));
  EXPECT_THAT(plan.parameters()[1].hashed,
              ElementsAre(ArrayKind::kMaster, ArrayKind::kFirstMoment, ArrayKind::kSecondMoment));
  EXPECT_THAT(plan.parameters()[2].arrays, ElementsAre(ArrayKind::kRowWisePlane, ArrayKind::kRowWiseScale,
                                                       ArrayKind::kColumnWisePlane, ArrayKind::kColumnWiseScale));
  EXPECT_THAT(plan.parameters()[3].arrays, ElementsAre(ArrayKind::kMaster));
}

TEST(RestorePlanTest, ParametersAreMatchedByName) {
  ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter([](ModelSpec& spec) {
                         std::reverse(spec.units[0].parameters.begin(), spec.units[0].parameters.end());
                         spec.units.push_back({.name = "third", .parameters = {Kept(spec)}});
                         spec.units[1].parameters.pop_back();
                         std::swap(spec.units[0], spec.units[1]);
                       }));
  const auto& [place, saved] = std::pair(plan.parameters()[2].place, plan.parameters()[2].saved);
  EXPECT_EQ(place.unit, 1);
  EXPECT_EQ(place.parameter, 1);
  EXPECT_EQ(saved.unit, 0);
  EXPECT_EQ(saved.parameter, 0);
  EXPECT_TRUE(plan.parameters()[2].keeps_scaling);
}

TEST(RestorePlanTest, WhatDecidesNoStateIsFree) {
  EXPECT_OK(PlanAfter([](ModelSpec& spec) {
    spec.seed = 5;
    spec.shard_size = 3;
    spec.small_parameter_bytes = 0;
    spec.gather_slots = 5;
    spec.gradient_slots = 3;
    spec.step_timeout = absl::Seconds(7);
    spec.gradient_sums = GradientSums::kAtPush;
    spec.accumulator_type = GradientType::kBF16;
    spec.pushes_per_step = 1;
    spec.groups[0].name = "renamed";
    spec.units[0].reshard_after_forward = false;
    W(spec).initial_value = {.kind = Initializer::kOnes};
    W(spec).placement = Placement::kOwned;
  }));
}

TEST(RestorePlanTest, MastersAreJoinedAndSplit) {
  ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter([](ModelSpec& spec) {
                         Halves(spec).master_type = MasterType::kFP32;
                         Halves(spec).encoding.format = Format::kNVFP4_2D;
                       }));
  const RestorePlan::Parameter& halves = plan.parameters()[1];
  EXPECT_THAT(halves.tensors, ElementsAre(StateTensor::kMaster));
  EXPECT_THAT(halves.arrays, ElementsAre(ArrayKind::kFirstMoment, ArrayKind::kSecondMoment));
  // The master's hash is the hash of the fp32 rows, in both.
  EXPECT_THAT(halves.hashed, ElementsAre(ArrayKind::kMaster, ArrayKind::kFirstMoment, ArrayKind::kSecondMoment));
}

TEST(RestorePlanTest, AnotherEncodingBeginsItsScalingAnew) {
  const auto changes = {
      +[](ModelSpec& spec) { W(spec).encoding.element = ElementType::kE5M2; },
      +[](ModelSpec& spec) { W(spec).encoding.format = Format::kFP8TensorCurrent; },
      +[](ModelSpec& spec) { W(spec).encoding.delayed_scaling = DelayedScaling::Options{.margin = 1}; }};
  for (const auto& change : changes) {
    ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter(change));
    EXPECT_FALSE(plan.parameters()[0].keeps_scaling);
    EXPECT_THAT(plan.parameters()[0].tensors, IsEmpty());
  }
}

TEST(RestorePlanTest, FrozenPlanesOfAnotherEncodingAreDecoded) {
  const auto changes = {+[](ModelSpec& spec) { Frozen(spec).encoding.element = ElementType::kE5M2; },
                        +[](ModelSpec& spec) { Frozen(spec).encoding.format = Format::kMXFP8_2D; }};
  for (const auto& change : changes) {
    ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter(change));
    EXPECT_THAT(plan.parameters()[2].arrays, IsEmpty());
    EXPECT_THAT(plan.parameters()[2].hashed, IsEmpty());
    EXPECT_THAT(plan.parameters()[2].tensors, ElementsAre(StateTensor::kMaster));
  }
}

TEST(RestorePlanTest, MomentsAreConvertedWhereThatIsAskedFor) {
  const auto change = [](ModelSpec& spec) { W(spec).exp_avg_sq_type = MomentType::kFP16; };
  EXPECT_THAT(PlanAfter(change),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("restore m: parameter w: want exp_avg_sq type FP16, got FP32"),
                             HasSubstr("ask for moments to be converted"))));
  ASSERT_OK_AND_ASSIGN(const RestorePlan plan, PlanAfter(change, {.convert_moments = true}));
  EXPECT_THAT(plan.parameters()[0].tensors, ElementsAre(StateTensor::kSecondMoment));
  EXPECT_THAT(plan.parameters()[0].arrays, ElementsAre(ArrayKind::kMaster, ArrayKind::kFirstMoment));
  EXPECT_THAT(plan.parameters()[0].hashed, ElementsAre(ArrayKind::kMaster, ArrayKind::kFirstMoment));
}

struct Refusal {
  const char* message;
  void (*change)(ModelSpec&);
};

TEST(RestorePlanTest, TheFirstDifferenceIsNamed) {
  const Refusal refusals[] = {
      {"want a checkpoint of this model, got one of m", [](ModelSpec& spec) { spec.name = "other"; }},
      {"parameter w: want shape [8, 4], got [4, 8]",
       [](ModelSpec& spec) {
         W(spec).shape = {8, 4};
       }},
      {"parameter w: want shape [4, 2, 4], got [4, 8]",
       [](ModelSpec& spec) {
         W(spec).shape = {4, 2, 4};
       }},
      {"parameter v: not found in the checkpoint", [](ModelSpec& spec) { W(spec).name = "v"; }},
      {"parameter halves: not found in the model", [](ModelSpec& spec) { spec.units[0].parameters.pop_back(); }},
      {"parameter w: want trainable off, got on", [](ModelSpec& spec) { W(spec).trainable = false; }},
      {"parameter frozen: want trainable on, got off", [](ModelSpec& spec) { Frozen(spec).trainable = true; }},
      {"parameter frozen: want master type FP32, got none",
       [](ModelSpec& spec) { Frozen(spec).master_type = MasterType::kFP32; }},
      {"parameter kept: want master type none, got FP32", [](ModelSpec& spec) { Kept(spec).master_type.reset(); }},
      {"parameter w: want gradient type BF16, got FP32",
       [](ModelSpec& spec) { W(spec).gradient_type = GradientType::kBF16; }},
      {"parameter w: want group 1, got 0", [](ModelSpec& spec) { W(spec).group = 1; }},
      {"group 1: want bias_correction off, got on", [](ModelSpec& spec) { spec.groups[1].bias_correction = false; }},
      {"group 0: want optimizer SGD_MOMENTUM, got AdamW",
       [](ModelSpec& spec) { spec.groups[0].optimizer = Optimizer::kSgdMomentum; }},
      {"want number of groups 3, got 2", [](ModelSpec& spec) { spec.groups.emplace_back(); }},
      {"want gradient_reduction sum, got mean",
       [](ModelSpec& spec) { spec.gradient_reduction = GradientReduction::kSum; }},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(PlanAfter(refusal.change), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    AllOf(HasSubstr(refusal.message), Not(HasSubstr("converted")))));
  }
}

}  // namespace
}  // namespace paramshard::server
