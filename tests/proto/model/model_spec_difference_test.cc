#include <functional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/model/model_spec_difference.h"
#include "proto/model/model_spec_proto.h"

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
    {"ShardSize", SET(spec.shard_size = 4), "model m: shard_size unset expected, got 4"},
    {"SmallParameterBytes", SET(spec.small_parameter_bytes = 5),
     "model m: small_parameter_bytes 262144 expected, got 5"},
    {"GatherSlots", SET(spec.gather_slots = 4), "model m: gather_slots 3 expected, got 4"},
    {"LargeGatherSlots", SET(spec.large_gather_slots = 2), "model m: large_gather_slots 1 expected, got 2"},
    {"GradientSlots", SET(spec.gradient_slots = 4), "model m: gradient_slots 2 expected, got 4"},
    {"Reduction", SET(spec.gradient_reduction = GradientReduction::kSum),
     "model m: gradient_reduction mean expected, got sum"},
    {"Seed", SET(spec.seed = 9), "model m: seed 0 expected, got 9"},
    {"StepTimeout", SET(spec.step_timeout = absl::Seconds(2)), "model m: step_timeout unset expected, got 2s"},
    {"GradientSums", SET(spec.gradient_sums = GradientSums::kAtCommit),
     "model m: gradient_sums unset expected, got at commit"},
    {"Accumulators", SET(spec.accumulator_type = GradientType::kBF16),
     "model m: accumulator_type FP32 expected, got BF16"},
    {"Groups", SET(spec.groups.resize(3)), "model m: number of groups 2 expected, got 3"},
    {"GroupName", SET(spec.groups[1].name = std::string("norms")), "group 1: name \"\" expected, got norms"},
    {"GroupMode", SET(spec.groups[1].mode = AdamMode::kL2), "group 1: mode AdamW expected, got L2"},
    {"BiasCorrection", SET(spec.groups[0].bias_correction = false), "group 0: bias_correction on expected, got off"},
    {"Units", SET(spec.units.pop_back()), "model m: number of units 2 expected, got 1"},
    {"UnitName", SET(spec.units[1].name = std::string("head")), "model m: unit 1 blocks.1 expected, got head"},
    {"Reshard", SET(spec.units[1].reshard_after_forward = false),
     "unit blocks.1: reshard_after_forward on expected, got off"},
    {"Parameters", SET(spec.units[1].parameters.emplace_back()),
     "unit blocks.1: number of parameters 1 expected, got 2"},
    {"ParameterName", SET(Last(spec).name = std::string("w")),
     "unit blocks.1: parameter 0 blocks.1.w1 expected, got w"},
    {"Shape", SET((Last(spec).shape = {4, 8})), "parameter blocks.1.w1: shape [4, 4] expected, got [4, 8]"},
    {"Format", SET(Last(spec).encoding.format = Format::kMXFP8),
     "parameter blocks.1.w1: format FP32 expected, got MXFP8"},
    {"Element", SET(Last(spec).encoding.element = ElementType::kE5M2),
     "parameter blocks.1.w1: element E4M3 expected, got E5M2"},
    {"PowerOfTwo", SET(Last(spec).encoding.power_of_two_scales = false),
     "parameter blocks.1.w1: power_of_two_scales on expected, got off"},
    {"GradientType", SET(Last(spec).gradient_type = GradientType::kBF16),
     "parameter blocks.1.w1: gradient type FP32 expected, got BF16"},
    {"ExpAvg", SET(Last(spec).exp_avg_type = MomentType::kBF16),
     "parameter blocks.1.w1: exp_avg type FP32 expected, got BF16"},
    {"ExpAvgSq", SET(Last(spec).exp_avg_sq_type = MomentType::kBF16),
     "parameter blocks.1.w1: exp_avg_sq type FP32 expected, got BF16"},
    {"MasterType", SET(Last(spec).master_type = MasterType::kBF16Remainder),
     "parameter blocks.1.w1: master type FP32 expected, got BF16_REMAINDER"},
    {"Fp8Moments", SET(Last(spec).exp_avg_type = MomentType::kFP8),
     "parameter blocks.1.w1: exp_avg type FP32 expected, got FP8"},
    {"Trainable", SET(Last(spec).trainable = false), "parameter blocks.1.w1: trainable on expected, got off"},
    {"Group", SET(Last(spec).group = 1), "parameter blocks.1.w1: group 0 expected, got 1"},
    {"ZeroElements", SET(Last(spec).initial_value.zero_begin = 2; Last(spec).initial_value.zero_end = 4),
     "parameter blocks.1.w1: initial value constant 0 expected, got constant 0 with elements [2, 4) zero"},
    {"InitialValue", SET((Last(spec).initial_value = {Initializer::kNormal, 0, 0.02f})),
     "parameter blocks.1.w1: initial value constant 0 expected, got normal with mean 0 and "
     "standard deviation 0.0199999996"},
};

#undef SET

TEST(ModelSpecDifferenceTest, DelayedScalingOfTheSameFormat) {
  ModelSpec expected = Model();
  Last(expected).encoding.format = Format::kFP8TensorDelayed;
  ModelSpec got = expected;
  Last(got).encoding.delayed_scaling = {DelayedScaling::Algorithm::kMostRecent, 16, -2};
  EXPECT_EQ(FirstDifference(expected, got),
            "parameter blocks.1.w1: delayed_scaling max of 1024 steps with margin 0 expected, got most recent of 16 "
            "steps with margin -2");
  EXPECT_NE(ModelSpecFingerprint(expected), ModelSpecFingerprint(got));
}

// No difference is silent, though nobody has found words for the field.
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

// A difference that is told is one of the fingerprint, and the other way round.
TEST_P(FirstDifferenceTest, AgreesWithTheFingerprint) {
  ModelSpec changed = Model();
  GetParam().make(changed);
  EXPECT_EQ(ModelSpecFingerprint(Model()) == ModelSpecFingerprint(changed), FirstDifference(Model(), changed).empty());
}

INSTANTIATE_TEST_SUITE_P(Changes, FirstDifferenceTest, testing::ValuesIn(kChanges),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace paramshard
