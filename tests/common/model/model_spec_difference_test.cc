#include <functional>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec_difference.h"
#include "common/model/model_spec_proto.h"
#include "gtest/gtest.h"
#include "kernels/optim/fused_step.h"

namespace paramshard {
namespace {

ModelSpec Model() {
  ModelSpec spec;
  spec.name = std::string("m");
  spec.groups.resize(2);
  spec.units.resize(2);
  for (int i = 0; i < 2; ++i) {
    spec.units[i].name = absl::StrCat("blocks.", i);
    spec.units[i].parameters.resize(1);
    spec.units[i].parameters[0].name = absl::StrCat("blocks.", i, ".w1");
    spec.units[i].parameters[0].shape = {4, 4};
  }
  return spec;
}

struct Change {
  const char* name;
  std::function<void(ModelSpec&)> make;
  const char* message;
};

void PrintTo(const Change& change, std::ostream* os) { *os << change.name; }

ParameterSpec& Last(ModelSpec& spec) { return spec.units[1].parameters[0]; }

#define SET(statement) [](ModelSpec& spec) { statement; }

const Change kChanges[] = {
    {"Nothing", SET((void)spec), ""},
    {"ShardSize", SET(spec.shard_size = 4), "model m: want shard_size unset, got 4"},
    {"SmallParameterBytes", SET(spec.small_parameter_bytes = 5), "model m: want small_parameter_bytes 262144, got 5"},
    {"GatherSlots", SET(spec.gather_slots = 4), "model m: want gather_slots 3, got 4"},
    {"LargeGatherSlots", SET(spec.large_gather_slots = 2), "model m: want large_gather_slots 1, got 2"},
    {"GradientSlots", SET(spec.gradient_slots = 4), "model m: want gradient_slots 2, got 4"},
    {"Reduction", SET(spec.gradient_reduction = GradientReduction::kSum),
     "model m: want gradient_reduction mean, got sum"},
    {"Seed", SET(spec.seed = 9), "model m: want seed 0, got 9"},
    {"StepTimeout", SET(spec.step_timeout = absl::Seconds(2)), "model m: want step_timeout unset, got 2s"},
    {"GradientSums", SET(spec.gradient_sums = GradientSums::kAtCommit),
     "model m: want gradient_sums unset, got at commit"},
    {"Accumulators", SET(spec.accumulator_type = GradientType::kBF16), "model m: want accumulator_type FP32, got BF16"},
    {"Pushes", SET(spec.pushes_per_step = 1), "model m: want pushes_per_step unset, got 1"},
    {"Groups", SET(spec.groups.resize(3)), "model m: want number of groups 2, got 3"},
    {"GroupName", SET(spec.groups[1].name = std::string("norms")), "group 1: want name \"\", got norms"},
    {"GroupOptimizer", SET(spec.groups[1].optimizer = Optimizer::kAdam), "group 1: want optimizer AdamW, got Adam"},
    {"BiasCorrection", SET(spec.groups[0].bias_correction = false), "group 0: want bias_correction on, got off"},
    {"Units", SET(spec.units.pop_back()), "model m: want number of units 2, got 1"},
    {"UnitName", SET(spec.units[1].name = std::string("head")), "model m: want unit 1 blocks.1, got head"},
    {"Reshard", SET(spec.units[1].reshard_after_forward = false),
     "unit blocks.1: want reshard_after_forward on, got off"},
    {"Parameters", SET(spec.units[1].parameters.emplace_back()), "unit blocks.1: want number of parameters 1, got 2"},
    {"ParameterName", SET(Last(spec).name = std::string("w")), "unit blocks.1: want parameter 0 blocks.1.w1, got w"},
    {"Shape", SET((Last(spec).shape = {4, 8})), "parameter blocks.1.w1: want shape [4, 4], got [4, 8]"},
    {"Format", SET(Last(spec).encoding.format = Format::kMXFP8), "parameter blocks.1.w1: want format FP32, got MXFP8"},
    {"Element", SET(Last(spec).encoding.element = ElementType::kE5M2),
     "parameter blocks.1.w1: want element E4M3, got E5M2"},
    {"PowerOfTwo", SET(Last(spec).encoding.power_of_two_scales = false),
     "parameter blocks.1.w1: want power_of_two_scales on, got off"},
    {"GradientType", SET(Last(spec).gradient_type = GradientType::kBF16),
     "parameter blocks.1.w1: want gradient type FP32, got BF16"},
    {"ExpAvg", SET(Last(spec).exp_avg_type = MomentType::kBF16),
     "parameter blocks.1.w1: want exp_avg type FP32, got BF16"},
    {"ExpAvgSq", SET(Last(spec).exp_avg_sq_type = MomentType::kBF16),
     "parameter blocks.1.w1: want exp_avg_sq type FP32, got BF16"},
    {"MasterType", SET(Last(spec).master_type = MasterType::kBF16Remainder),
     "parameter blocks.1.w1: want master type FP32, got BF16_REMAINDER"},
    {"Fp8Moments", SET(Last(spec).exp_avg_type = MomentType::kFP8),
     "parameter blocks.1.w1: want exp_avg type FP32, got FP8"},
    {"Placement", SET(Last(spec).placement = Placement::kOwned),
     "parameter blocks.1.w1: want placement cut, got owned"},
    {"Trainable", SET(Last(spec).trainable = false), "parameter blocks.1.w1: want trainable on, got off"},
    {"Group", SET(Last(spec).group = 1), "parameter blocks.1.w1: want group 0, got 1"},
    {"ZeroElements", SET(Last(spec).initial_value.zero_begin = 2; Last(spec).initial_value.zero_end = 4),
     "parameter blocks.1.w1: want initial value constant 0, got constant 0 with elements [2, 4) zero"},
    {"InitialValue", SET((Last(spec).initial_value = {Initializer::kNormal, 0, 0.02f})),
     "parameter blocks.1.w1: want initial value constant 0, got normal with mean 0 and "
     "standard deviation 0.0199999996"},
};

#undef SET

TEST(ModelSpecDifferenceTest, DelayedScalingOfTheSameFormat) {
  ModelSpec expected = Model();
  Last(expected).encoding.format = Format::kFP8TensorDelayed;
  ModelSpec got = expected;
  Last(got).encoding.delayed_scaling = {DelayedScaling::Algorithm::kMostRecent, 16, -2};
  EXPECT_EQ(FirstDifference(expected, got),
            "parameter blocks.1.w1: want delayed_scaling max of 1024 steps with margin 0, got most recent of 16 "
            "steps with margin -2");
  EXPECT_NE(ModelSpecFingerprint(expected), ModelSpecFingerprint(got));
}

// A difference in a field without a description is reported too.
TEST(ModelSpecDifferenceTest, WhatHasNoWordsIsToldAsOfMessages) {
  ModelSpec expected = Model();
  for (UnitSpec& unit : expected.units) unit.parameters[0].encoding.format = Format::kFP32;
  ModelSpec got = expected;
  got.format_rules = {{.pattern = "*", .encoding = {.format = Format::kBF16}}};
  const std::string difference = FirstDifference(expected, got);
  EXPECT_EQ(difference.find("model m: added: format_rules[0]"), 0u) << difference;
}

class FirstDifferenceTest : public testing::TestWithParam<Change> {};

TEST_P(FirstDifferenceTest, SaysWhereAndWhat) {
  ModelSpec changed = Model();
  GetParam().make(changed);
  EXPECT_EQ(FirstDifference(Model(), changed), GetParam().message);
}

// A difference is reported if and only if the fingerprints differ.
TEST_P(FirstDifferenceTest, AgreesWithTheFingerprint) {
  ModelSpec changed = Model();
  GetParam().make(changed);
  EXPECT_EQ(ModelSpecFingerprint(Model()) == ModelSpecFingerprint(changed), FirstDifference(Model(), changed).empty());
}

INSTANTIATE_TEST_SUITE_P(Changes, FirstDifferenceTest, testing::ValuesIn(kChanges),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace paramshard
