#include "common/model/model_spec_proto.h"

#include <string>

#include "common/model/model_spec_difference.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

ParameterSpec Named(std::string name) { return {.name = std::move(name), .shape = {32, 16}}; }

ModelSpec OneUnit(std::vector<ParameterSpec> parameters) {
  return {.name = "m", .units = {{.name = "u", .parameters = std::move(parameters)}}};
}

// Returns the checked spec of a description, as client and daemon use it.
absl::StatusOr<ModelSpec> Check(const ModelSpec& spec) { return ParseModelSpec(ModelSpecToProto(spec)); }

TEST(DescriptionTest, WithoutRulesAParameterWithoutFormatIsFp32) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec, Check(OneUnit({Named("w")})));
  const ParameterSpec& parameter = spec.units[0].parameters[0];
  EXPECT_EQ(parameter.encoding.format, Format::kFP32);
  EXPECT_EQ(parameter.exp_avg_type, MomentType::kFP32);
  EXPECT_EQ(parameter.exp_avg_sq_type, MomentType::kFP32);
  EXPECT_EQ(parameter.master_type, MasterType::kFP32);
}

TEST(DescriptionTest, RulesGiveFormatsToParametersWithout) {
  ModelSpec spec = OneUnit({Named("a.norm.weight"), Named("lm_head.weight"), Named("a.w"), Named("b.w")});
  spec.units[0].parameters[3].encoding.format = Format::kFP16;
  spec.format_rules = {
      {.pattern = "*.norm.*", .encoding = {.format = Format::kFP32}},
      {.pattern = "lm_head.weight", .encoding = {.format = Format::kBF16}, .master_type = MasterType::kBF16Remainder},
      {.pattern = "*",
       .encoding = {.format = Format::kMXFP8, .element = ElementType::kE5M2},
       .exp_avg_type = MomentType::kFP8,
       .exp_avg_sq_type = MomentType::kFP16}};
  ASSERT_OK_AND_ASSIGN(const ModelSpec resolved, Check(spec));
  const std::vector<ParameterSpec>& parameters = resolved.units[0].parameters;
  EXPECT_EQ(parameters[0].encoding.format, Format::kFP32);
  EXPECT_EQ(parameters[1].encoding.format, Format::kBF16);
  EXPECT_EQ(parameters[1].master_type, MasterType::kBF16Remainder);
  EXPECT_EQ(EncodingOf(parameters[2].encoding), (Encoding{Format::kMXFP8, ElementType::kE5M2, true}));
  EXPECT_EQ(parameters[2].exp_avg_type, MomentType::kFP8);
  EXPECT_EQ(parameters[2].exp_avg_sq_type, MomentType::kFP16);
  EXPECT_EQ(parameters[3].encoding.format, Format::kFP16);
  EXPECT_EQ(parameters[3].exp_avg_type, MomentType::kFP32);
}

TEST(DescriptionTest, TheFingerprintStaysEqualAcrossBuilds) {
  ModelSpec spec = OneUnit({Named("a.norm.weight"), Named("a.w")});
  spec.shard_size = 2;
  spec.seed = 7;
  spec.format_rules = {{.pattern = "*.norm.*", .encoding = {.format = Format::kFP32}},
                       {.pattern = "*", .encoding = {.format = Format::kMXFP8}, .exp_avg_type = MomentType::kFP8}};
  ASSERT_OK_AND_ASSIGN(const ModelSpec checked, Check(spec));
  EXPECT_EQ(ModelSpecFingerprint(WithoutInitialValues(checked)), 0xdd7118f4d0f0d3eb)
      << "daemons of two builds would take equal specs for different ones: raise `kClusterProtocolVersion`, so that "
         "they refuse to join, and put the new number here";
}

TEST(DescriptionTest, WhatIsUnsetHasTheDefaultOfItsFormat) {
  ModelSpec spec = OneUnit({Named("current"), Named("block"), Named("fp4")});
  spec.units[0].parameters[0].encoding.format = Format::kFP8TensorCurrent;
  spec.units[0].parameters[1].encoding.format = Format::kFP8Block128x128;
  spec.units[0].parameters[2].encoding.format = Format::kNVFP4_2D;
  ASSERT_OK_AND_ASSIGN(const ModelSpec resolved, Check(spec));
  const std::vector<ParameterSpec>& parameters = resolved.units[0].parameters;
  EXPECT_EQ(EncodingOf(parameters[0].encoding), (Encoding{Format::kFP8TensorCurrent, ElementType::kE4M3, false}));
  EXPECT_EQ(EncodingOf(parameters[1].encoding), (Encoding{Format::kFP8Block128x128, ElementType::kE4M3, true}));
  EXPECT_EQ(EncodingOf(parameters[2].encoding).element, ElementType::kE2M1);
}

TEST(DescriptionTest, DelayedScalingIsSentAndComesBack) {
  ModelSpec spec = OneUnit({Named("w")});
  EncodingSpec& encoding = spec.units[0].parameters[0].encoding;
  encoding = {.format = Format::kFP8TensorDelayed,
              .delayed_scaling = DelayedScaling::Options{
                  .algorithm = DelayedScaling::Algorithm::kMostRecent, .history_length = 5, .margin = -2}};
  ASSERT_OK_AND_ASSIGN(const ModelSpec resolved, Check(spec));
  const DelayedScaling::Options scaling = *resolved.units[0].parameters[0].encoding.delayed_scaling;
  EXPECT_EQ(scaling.algorithm, DelayedScaling::Algorithm::kMostRecent);
  EXPECT_EQ(scaling.history_length, 5);
  EXPECT_EQ(scaling.margin, -2);
  for (const int64_t length : {int64_t{0}, INT64_MIN, INT64_MAX, (int64_t{1} << 32) + 1}) {
    encoding.delayed_scaling->history_length = length;
    EXPECT_THAT(Check(spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter w: "))) << length;
  }
}

// A checked spec has the same meaning as its description.
TEST(DescriptionTest, ACheckedSpecIsTheSameModel) {
  ModelSpec spec = OneUnit({Named("w"), Named("v"), Named("t")});
  spec.units[0].parameters[0].initial_value = {
      .kind = Initializer::kNormal, .a = 0.5f, .b = 0.25f, .zero_begin = 1, .zero_end = 3};
  spec.units[0].parameters[2].initial_value = {Initializer::kTruncatedNormal, 0.5f, 0.02f, 0.4f, 0.75f};
  spec.units[0].parameters[1].initial_value = {Initializer::kUniform, -1.0f, 1.0f};
  spec.units[0].parameters[1].group = 1;
  spec.units[0].reshard_after_forward = false;
  spec.groups = {{.name = "decay"}, {.optimizer = Optimizer::kAdam, .bias_correction = false}};
  spec.shard_size = 2;
  spec.small_parameter_bytes = 7;
  spec.gather_slots = 4;
  spec.large_gather_slots = 2;
  spec.gradient_slots = 5;
  spec.gradient_reduction = GradientReduction::kSum;
  spec.seed = 11;
  spec.step_timeout = absl::Milliseconds(1500);
  spec.gradient_sums = GradientSums::kAtPush;
  spec.pushes_per_step = 6;
  spec.format_rules = {{.pattern = "?", .encoding = {.format = Format::kFP8TensorDelayed}}};
  ASSERT_OK_AND_ASSIGN(const ModelSpec checked, Check(spec));
  ASSERT_OK_AND_ASSIGN(const ModelSpec again, Check(checked));
  EXPECT_EQ(FirstDifference(checked, again), "");
  EXPECT_EQ(ModelSpecFingerprint(checked), ModelSpecFingerprint(again));
  EXPECT_EQ(checked.units[0].parameters[0].initial_value.zero_begin, 1);
  EXPECT_EQ(checked.units[0].parameters[0].initial_value.zero_end, 3);
}

}  // namespace
}  // namespace paramshard
