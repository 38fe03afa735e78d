#include "common/model/model_spec_proto.h"

#include <functional>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "common/model/model_spec_difference.h"
#include "common/model/names.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "kernels/optim/optimizers.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Two units, three parameters.
v1::ModelSpec ValidSpec() {
  v1::ModelSpec spec;
  spec.set_name("m");
  for (const char* unit : {"u0", "u1"}) {
    v1::UnitSpec& proto = *spec.add_units();
    proto.set_name(unit);
    v1::ParameterSpec& parameter = *proto.add_parameters();
    parameter.set_name(absl::StrCat(unit, ".w"));
    parameter.add_shape(4);
    parameter.add_shape(8);
    parameter.set_format(v1::FORMAT_MXFP8);
  }
  v1::ParameterSpec& norm = *spec.mutable_units(0)->add_parameters();
  norm.set_name("u0.norm");
  norm.add_shape(8);
  norm.set_format(v1::FORMAT_FP32);
  return spec;
}

struct Refusal {
  const char* rule;
  std::function<void(v1::ModelSpec&)> break_it;
  const char* object;   // how the message begins
  const char* message;  // what it says about the rule
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void PrintTo(const Refusal& refusal, std::ostream* os) { *os << refusal.rule; }

v1::ParameterSpec& First(v1::ModelSpec& spec) { return *spec.mutable_units(0)->mutable_parameters(0); }

std::function<void(v1::ModelSpec&)> Shape(std::vector<int64_t> shape) {
  return [shape](v1::ModelSpec& spec) {
    First(spec).clear_shape();
    for (const int64_t dimension : shape) First(spec).add_shape(dimension);
  };
}

std::function<void(v1::ModelSpec&)> Format(v1::Format format, v1::Element element = v1::ELEMENT_UNSPECIFIED) {
  return [=](v1::ModelSpec& spec) {
    First(spec).set_format(format);
    First(spec).set_element(element);
  };
}

std::function<void(v1::ModelSpec&)> Delayed(int32_t history_length, int32_t margin) {
  return [=](v1::ModelSpec& spec) {
    First(spec).set_format(v1::FORMAT_FP8_TENSOR_DELAYED);
    First(spec).mutable_delayed_scaling()->set_history_length(history_length);
    First(spec).mutable_delayed_scaling()->set_margin(margin);
  };
}

v1::FormatRule& AddRule(v1::ModelSpec& spec, std::string pattern, v1::Format format) {
  v1::FormatRule& rule = *spec.add_format_rules();
  rule.set_pattern(std::move(pattern));
  rule.set_format(format);
  return rule;
}

// Replaces the formats of all parameters by rules.
std::function<void(v1::ModelSpec&)> ByRules(std::vector<std::pair<std::string, v1::Format>> rules) {
  return [=](v1::ModelSpec& spec) {
    for (v1::UnitSpec& unit : *spec.mutable_units()) {
      for (v1::ParameterSpec& parameter : *unit.mutable_parameters()) parameter.clear_format();
    }
    for (const auto& [pattern, format] : rules) AddRule(spec, pattern, format);
  };
}

std::function<void(v1::ModelSpec&)> Normal(float mean, float standard_deviation) {
  return [=](v1::ModelSpec& spec) {
    First(spec).mutable_initial_value()->mutable_normal()->set_mean(mean);
    First(spec).mutable_initial_value()->mutable_normal()->set_standard_deviation(standard_deviation);
  };
}

std::function<void(v1::ModelSpec&)> Uniform(float low, float high) {
  return [=](v1::ModelSpec& spec) {
    First(spec).mutable_initial_value()->mutable_uniform()->set_low(low);
    First(spec).mutable_initial_value()->mutable_uniform()->set_high(high);
  };
}

std::function<void(v1::ModelSpec&)> Zero(int64_t begin, int64_t end) {
  return [=](v1::ModelSpec& spec) {
    First(spec).mutable_initial_value()->set_zero_begin(begin);
    First(spec).mutable_initial_value()->set_zero_end(end);
  };
}

std::function<void(v1::ModelSpec&)> TruncatedNormal(float mean, float standard_deviation, float low, float high) {
  return [=](v1::ModelSpec& spec) {
    auto& normal = *First(spec).mutable_initial_value()->mutable_truncated_normal();
    normal.set_mean(mean);
    normal.set_standard_deviation(standard_deviation);
    normal.set_low(low);
    normal.set_high(high);
  };
}

std::function<void(v1::ModelSpec&)> Timeout(int64_t seconds, int32_t nanos) {
  return [=](v1::ModelSpec& spec) {
    spec.mutable_step_timeout()->set_seconds(seconds);
    spec.mutable_step_timeout()->set_nanos(nanos);
  };
}

#define SET(statement) [](v1::ModelSpec& spec) { statement; }

const Refusal kRefusals[] = {
    {"ModelNameEmpty", SET(spec.set_name("")),
     "create model \"\": ", "1 to 512 bytes of UTF-8 without NUL, got an empty name"},
    {"ModelNameLong", SET(spec.set_name(std::string(1 << 20, 'x'))), "create model xxxx", "got 1048576 bytes"},
    {"ModelNameNul", SET(spec.set_name(std::string("a\0b", 3))), "create model a\\x00", "got a NUL"},
    {"ModelNameNotUtf8", SET(spec.set_name("a\xff")), "create model a\\xff: ", "got other bytes: a\\xff"},
    {"ModelNameWithSlash", SET(spec.set_name("a/b")), "create model a/b: ", "want a model name without '/', got a/b"},
    {"ModelNameLikeAnOption", SET(spec.set_name("--help")), "create model --help: ", "neither an option"},
    {"ModelNameOfAFolder", SET(spec.set_name("..")), "create model ..: ", "nor a folder"},
    {"ModelNameOfACheckpoint", SET(spec.set_name("latest")), "create model latest: ", "nor latest"},
    {"ModelNameOfTwoLines", SET(spec.set_name("a\nb")), "create model a\\nb: ", "without control characters"},
    {"NoUnits", SET(spec.clear_units()), "create model m: ", "want at least one unit, got none"},
    {"NoParameters", SET(spec.mutable_units(1)->clear_parameters()),
     "create model m: unit u1: ", "want at least one parameter, got none"},
    {"TooManyParameters", SET(for (int i = 0; i < kMaxParameters; ++i) spec.mutable_units(1)->add_parameters()),
     "create model m: ", "want at most 250000 parameters, got 250003"},
    {"UnitNameEmpty", SET(spec.mutable_units(1)->set_name("")), "create model m: unit 1: ", "got an empty name"},
    {"UnitNameLong", SET(spec.mutable_units(1)->set_name(std::string(513, 'x'))),
     "create model m: unit 1: ", "got 513 bytes"},
    {"UnitNameTwice", SET(spec.mutable_units(1)->set_name("u0")), "create model m: unit u0: ", "duplicate unit name"},
    {"ParameterNameEmpty", SET(First(spec).set_name("")),
     "create model m: parameter 0 of unit u0: ", "got an empty name"},
    {"ParameterNameLong", SET(First(spec).set_name(std::string(513, 'x'))),
     "create model m: parameter 0 of unit u0: ", "got 513 bytes"},
    {"ParameterNameNul", SET(First(spec).set_name(std::string("\0", 1))),
     "create model m: parameter 0 of unit u0: ", "got a NUL in \\x00"},
    {"ParameterNameNotUtf8", SET(First(spec).set_name("\xed\xa0\x80")),
     "create model m: parameter 0 of unit u0: ", "got other bytes"},
    {"ParameterNameTwiceInAUnit", SET(First(spec).set_name("u0.norm")),
     "create model m: parameter u0.norm: ", "duplicate parameter name"},
    {"ParameterNameTwiceInTheModel", SET(First(spec).set_name("u1.w")),
     "create model m: parameter u1.w: ", "duplicate parameter name"},
    {"DimensionZero", Shape({4, 0}), "create model m: parameter u0.w: ", "want dimensions >= 1, got shape [4, 0]"},
    {"DimensionNegative", Shape({-1, 8}),
     "create model m: parameter u0.w: ", "want dimensions >= 1, got shape [-1, 8]"},
    {"NineDimensions", Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}),
     "create model m: parameter u0.w: ", "want at most 8 dimensions, got 9"},
    {"TwoTo40Elements", Shape({1 << 20, 1 << 20}), "create model m: parameter u0.w: ", "want fewer than 2^40 elements"},
    {"ProductOverflows", Shape({INT64_MAX, INT64_MAX}),
     "create model m: parameter u0.w: ", "want fewer than 2^40 elements"},
    {"ProductWrapsToSmall", Shape({int64_t{1} << 32, int64_t{1} << 32, 4}),
     "create model m: parameter u0.w: ", "want fewer than 2^40 elements"},
    {"NoFormat", Format(v1::FORMAT_UNSPECIFIED),
     "create model m: parameter u0.w: ", "want a format or a format rule that matches the name, got none"},
    {"UnknownFormat", Format(static_cast<v1::Format>(77)), "create model m: parameter u0.w: ", "want a format, got 77"},
    {"NegativeFormat", Format(static_cast<v1::Format>(-1)),
     "create model m: parameter u0.w: ", "want a format, got -1"},
    {"UnknownElement", Format(v1::FORMAT_MXFP8, static_cast<v1::Element>(4)),
     "create model m: parameter u0.w: ", "want an element type, got 4"},
    {"ElementOfAnotherFormat", Format(v1::FORMAT_MXFP8, v1::ELEMENT_E2M1),
     "create model m: parameter u0.w: ", "want an element type of MXFP8, got E2M1"},
    {"ElementTooWideForNvfp4", Format(v1::FORMAT_NVFP4_2D, v1::ELEMENT_E4M3),
     "create model m: parameter u0.w: ", "want an element type of NVFP4_2D, got E4M3"},
    {"ElementTooNarrowForTensorScaling", Format(v1::FORMAT_FP8_TENSOR_DELAYED, v1::ELEMENT_E2M1),
     "create model m: parameter u0.w: ", "want an element type of FP8_TENSOR_DELAYED, got E2M1"},
    {"RemainderOfAnotherFormat", SET(First(spec).set_master_type(v1::MASTER_TYPE_BF16_REMAINDER)),
     "create model m: parameter u0.w: ", "want format BF16 for a master of BF16_REMAINDER, got MXFP8"},
    {"RemainderOfFp32",
     SET(spec.mutable_units(0)->mutable_parameters(1)->set_master_type(v1::MASTER_TYPE_BF16_REMAINDER)),
     "create model m: parameter u0.norm: ", "want format BF16 for a master of BF16_REMAINDER, got FP32"},
    {"UnknownMasterType", SET(First(spec).set_master_type(static_cast<v1::MasterType>(3))),
     "create model m: parameter u0.w: ", "want a type of the master, got 3"},
    {"HistoryLengthZero", Delayed(0, 0), "create model m: parameter u0.w: ", "a history length from 1 to 65536"},
    {"HistoryLengthNegative", Delayed(-1, 0), "create model m: parameter u0.w: ", "a history length from 1 to 65536"},
    {"HistoryLengthTooLong", Delayed(65537, 0), "create model m: parameter u0.w: ", "a history length from 1 to 65536"},
    {"HistoryLengthZeroThatNobodyReads", SET(First(spec).mutable_delayed_scaling()->set_history_length(0)),
     "create model m: parameter u0.w: ", "a history length from 1 to 65536"},
    {"MarginTooLarge", Delayed(1, 65), "create model m: parameter u0.w: ", "a margin from -64 to 64"},
    {"UnknownAmaxAlgorithm",
     SET(First(spec).mutable_delayed_scaling()->set_algorithm(static_cast<v1::AmaxAlgorithm>(3))),
     "create model m: parameter u0.w: ", "want an algorithm of delayed scaling, got 3"},
    {"NoRuleMatchesTheParameter", ByRules({{"u1.*", v1::FORMAT_BF16}}),
     "create model m: parameter u0.w: ", "want a format or a format rule that matches the name, got none"},
    {"RuleMatchesNothing", ByRules({{"*.weight", v1::FORMAT_BF16}, {"*", v1::FORMAT_FP32}}),
     "create model m: ", "format rule *.weight matches no parameter"},
    {"RuleMatchesNothingAndNobodyNeedsOne", SET(AddRule(spec, "w", v1::FORMAT_BF16)),
     "create model m: ", "format rule w matches no parameter"},
    {"RuleWithoutAFormat", ByRules({{"*", v1::FORMAT_UNSPECIFIED}}),
     "create model m: parameter u0.w: by format rule *: ", "want a format, got none"},
    {"RuleThatNobodyNeedsWithoutAFormat", SET(AddRule(spec, "*", v1::FORMAT_UNSPECIFIED)),
     "create model m: format rule *: ", "want a format, got none"},
    {"RuleWithAnElementOfAnotherFormat",
     SET(ByRules({{"*", v1::FORMAT_MXFP8}})(spec); spec.mutable_format_rules(0)->set_element(v1::ELEMENT_E2M1)),
     "create model m: parameter u0.w: by format rule *: ", "want an element type of MXFP8, got E2M1"},
    {"RuleWithARemainderOfAnotherFormat",
     SET(ByRules({{"*", v1::FORMAT_MXFP8}})(spec);
         spec.mutable_format_rules(0)->set_master_type(v1::MASTER_TYPE_BF16_REMAINDER)),
     "create model m: parameter u0.w: by format rule *: ", "want format BF16 for a master of BF16_REMAINDER"},
    {"RemainderOfAnotherFormatByRule",
     SET(ByRules({{"*", v1::FORMAT_FP16}})(spec); First(spec).set_master_type(v1::MASTER_TYPE_BF16_REMAINDER)),
     "create model m: parameter u0.w: by format rule *: ", "want format BF16 for a master of BF16_REMAINDER"},
    {"RuleWithHistoryLengthZero",
     SET(ByRules({{"*", v1::FORMAT_FP8_TENSOR_DELAYED}})(spec);
         spec.mutable_format_rules(0)->mutable_delayed_scaling()->set_history_length(0)),
     "create model m: parameter u0.w: by format rule *: ", "a history length from 1 to 65536"},
    {"ElementWithoutAFormat", SET(ByRules({{"*", v1::FORMAT_MXFP8}})(spec); First(spec).set_element(v1::ELEMENT_E5M2)),
     "create model m: parameter u0.w: ", "require a format"},
    {"PatternEmpty", SET(AddRule(spec, "", v1::FORMAT_BF16)),
     "create model m: pattern of format rule 0: ", "got an empty name"},
    {"PatternLong", SET(AddRule(spec, std::string(513, '*'), v1::FORMAT_BF16)),
     "create model m: pattern of format rule 0: ", "got 513 bytes"},
    {"PatternNul", SET(AddRule(spec, "*", v1::FORMAT_BF16); AddRule(spec, std::string("*\0", 2), v1::FORMAT_BF16)),
     "create model m: pattern of format rule 1: ", "got a NUL"},
    {"TooManyRules", SET(for (int i = 0; i < 257; ++i) AddRule(spec, "*", v1::FORMAT_BF16)),
     "create model m: ", "want at most 256 format rules, got 257"},
    {"UnknownGradientType", SET(First(spec).set_gradient_type(static_cast<v1::GradientType>(3))),
     "create model m: parameter u0.w: ", "want a gradient type, got 3"},
    {"UnknownExpAvgType", SET(First(spec).set_exp_avg_type(static_cast<v1::MomentType>(9))),
     "create model m: parameter u0.w: ", "want a type of exp_avg, got 9"},
    {"UnknownExpAvgSqType", SET(First(spec).set_exp_avg_sq_type(static_cast<v1::MomentType>(9))),
     "create model m: parameter u0.w: ", "want a type of exp_avg_sq, got 9"},
    {"GroupNegative", SET(First(spec).set_group(-1)),
     "create model m: parameter u0.w: ", "want a group in [0, 0], got -1"},
    {"GroupTooHigh", SET(spec.add_groups(); spec.add_groups(); First(spec).set_group(2)),
     "create model m: parameter u0.w: ", "want a group in [0, 1], got 2"},
    {"ConstantNotFinite", SET(First(spec).mutable_initial_value()->mutable_constant()->set_value(kInfinity)),
     "create model m: parameter u0.w: ", "want a finite constant, got inf"},
    {"ZeroElementsReversed", Zero(2, 1), "create model m: parameter u0.w: ", "got zero_begin 2, zero_end 1"},
    {"ZeroElementsNegative", Zero(-1, 1), "create model m: parameter u0.w: ", "got zero_begin -1, zero_end 1"},
    {"ZeroElementsBehindTheEnd", Zero(0, 1 << 20),
     "create model m: parameter u0.w: ", "got zero_begin 0, zero_end 1048576"},
    {"MeanNotFinite", Normal(kNaN, 1), "create model m: parameter u0.w: ", "want a finite mean"},
    {"DeviationNegative", Normal(0, -1), "create model m: parameter u0.w: ", "standard deviation >= 0, got 0 and -1"},
    {"DeviationNotFinite", Normal(0, kInfinity), "create model m: parameter u0.w: ", "a finite standard deviation"},
    {"UniformEmpty", Uniform(1, 1), "create model m: parameter u0.w: ", "want finite low < high, got low 1, high 1"},
    {"TruncatedNormalEmpty", TruncatedNormal(0, 1, 2, 2), "create model m: parameter u0.w: ",
     "want a finite mean, a finite standard deviation > 0 and finite low < high, got 0, 1, low 2, high 2"},
    {"TruncatedNormalWithoutDeviation", TruncatedNormal(0, 0, -2, 2),
     "create model m: parameter u0.w: ", "standard deviation > 0"},
    {"UniformReversed", Uniform(2, 1), "create model m: parameter u0.w: ", "want finite low < high"},
    {"UniformNotFinite", Uniform(-kInfinity, 1), "create model m: parameter u0.w: ", "want finite low < high"},
    {"GroupNameLong", SET(spec.add_groups()->set_name(std::string(513, 'x'))),
     "create model m: group 0: ", "got 513 bytes"},
    {"UnknownOptimizer", SET(spec.add_groups()->set_optimizer(static_cast<v1::Optimizer>(v1::Optimizer_MAX + 1))),
     "create model m: group 0: ", "want an optimizer, got "},
    {"ShardSizeZero", SET(spec.set_shard_size(0)), "create model m: ", "want shard_size in [1, 4096], got 0"},
    {"ShardSizeTooLarge", SET(spec.set_shard_size(4097)), "create model m: ", "want shard_size in [1, 4096], got 4097"},
    {"SmallParameterBytesNegative", SET(spec.set_small_parameter_bytes(-1)),
     "create model m: ", "want small_parameter_bytes >= 0, got -1"},
    {"GatherSlotsZero", SET(spec.set_gather_slots(0)), "create model m: ", "want gather_slots in [1, 64], got 0"},
    {"LargeGatherSlotsZero", SET(spec.set_large_gather_slots(0)),
     "create model m: ", "want large_gather_slots in [1, 3], got 0"},
    {"LargeGatherSlotsMoreThanAll", SET(spec.set_large_gather_slots(4)),
     "create model m: ", "want large_gather_slots in [1, 3], got 4"},
    {"GatherSlotsTooMany", SET(spec.set_gather_slots(65)), "create model m: ", "want gather_slots in [1, 64], got 65"},
    {"GradientSlotsZero", SET(spec.set_gradient_slots(0)), "create model m: ", "want gradient_slots in [1, 64], got 0"},
    {"GradientSlotsTooMany", SET(spec.set_gradient_slots(65)),
     "create model m: ", "want gradient_slots in [1, 64], got 65"},
    {"UnknownReduction", SET(spec.set_gradient_reduction(static_cast<v1::GradientReduction>(3))),
     "create model m: ", "want a gradient reduction, got 3"},
    {"UnknownSums", SET(spec.set_gradient_sums(static_cast<v1::GradientSums>(3))),
     "create model m: ", "want gradient_sums AT_COMMIT or AT_PUSH, got 3"},
    {"UnknownAccumulators", SET(spec.set_accumulator_type(static_cast<v1::GradientType>(3))),
     "create model m: ", "want accumulator_type FP32 or BF16, got 3"},
    {"NoPushes", SET(spec.set_pushes_per_step(0)),
     "create model m: ", "want pushes_per_step in [1, 2147483647], got 0"},
    {"TwoPushesIntoBF16", SET(spec.set_accumulator_type(v1::GRADIENT_TYPE_BF16); spec.set_pushes_per_step(2)),
     "create model m: ", "want pushes_per_step with BF16 accumulators in [1, 1], got 2"},
    {"TimeoutZero", Timeout(0, 0),
     "create model m: step_timeout: ", "want a duration > 0 of at most 24h, got 0 s and 0 ns"},
    {"TimeoutNegative", Timeout(-1, 0),
     "create model m: step_timeout: ", "want a duration > 0 of at most 24h, got -1 s and 0 ns"},
    {"TimeoutNanosOutOfRange", Timeout(1, 1'000'000'000), "create model m: step_timeout: ", "want a duration > 0"},
    {"TimeoutSignsDiffer", Timeout(1, -1), "create model m: step_timeout: ", "want a duration > 0"},
    {"TimeoutTooLong", Timeout(24 * 3600, 1), "create model m: step_timeout: ", "of at most 24h, got 86400 s and 1 ns"},
    {"TimeoutFarTooLong", Timeout(INT64_MAX, 0), "create model m: step_timeout: ", "want a duration > 0 of at most"},
    {"TotalBytesOverflow", SET(for (int i = 0; i < 1000; ++i) {
       v1::ParameterSpec& parameter = *spec.mutable_units(1)->add_parameters();
       parameter = First(spec);
       parameter.set_name(absl::StrCat("large", i));
       parameter.set_shape(1, (int64_t{1} << 38) - 1);
     }),
     "create model m: parameter large", "want sizes that fit 64 bits"},
};

#undef SET

class ParseModelSpecRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(ParseModelSpecRefusalTest, NamesObjectAndRule) {
  v1::ModelSpec spec = ValidSpec();
  GetParam().break_it(spec);
  const absl::Status status = ParseModelSpec(spec).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(GetParam().object));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_LT(status.message().size(), 300u);
}

INSTANTIATE_TEST_SUITE_P(Rules, ParseModelSpecRefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.rule); });

TEST(ParseModelSpecTest, DefaultsAreTheProtos) {
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(ValidSpec());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "m");
  ASSERT_EQ(spec->units.size(), 2u);
  EXPECT_TRUE(spec->units[0].reshard_after_forward);
  ASSERT_EQ(spec->units[0].parameters.size(), 2u);
  const ParameterSpec& parameter = spec->units[0].parameters[0];
  EXPECT_EQ(parameter.rows(), 4);
  EXPECT_EQ(parameter.columns(), 8);
  EXPECT_EQ(EncodingOf(parameter.encoding), (Encoding{paramshard::Format::kMXFP8, ElementType::kE4M3, true}));
  EXPECT_EQ(parameter.gradient_type, GradientType::kFP32);
  EXPECT_EQ(parameter.exp_avg_type, MomentType::kFP32);
  EXPECT_EQ(parameter.exp_avg_sq_type, MomentType::kFP32);
  EXPECT_EQ(parameter.initial_value.kind, Initializer::kZeros);
  ASSERT_EQ(spec->groups.size(), 1u);
  EXPECT_EQ(spec->groups[0].optimizer, Optimizer::kAdamW);
  EXPECT_TRUE(spec->groups[0].bias_correction);
  EXPECT_FALSE(spec->shard_size.has_value());
  EXPECT_EQ(spec->small_parameter_bytes, 262144);
  EXPECT_EQ(spec->gather_slots, 3);
  EXPECT_EQ(spec->gradient_slots, 2);
  EXPECT_EQ(spec->gradient_reduction, GradientReduction::kMean);
  EXPECT_FALSE(spec->step_timeout.has_value());
}

TEST(ParseModelSpecTest, ShapesAreSeenAsMatrices) {
  const struct {
    std::vector<int64_t> shape;
    int64_t rows, columns;
  } cases[] = {{{}, 1, 1},
               {{7}, 1, 7},
               {{3, 7}, 3, 7},
               {{2, 3, 5, 7}, 30, 7},
               {{2, 1, 1, 1, 1, 1, 1, 3}, 2, 3},
               {{kMaxElements - 1}, 1, kMaxElements - 1}};
  for (const auto& [shape, rows, columns] : cases) {
    v1::ModelSpec proto = ValidSpec();
    Shape(shape)(proto);
    const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->units[0].parameters[0].rows(), rows);
    EXPECT_EQ(spec->units[0].parameters[0].columns(), columns);
  }
}

TEST(ParseModelSpecTest, EveryFormatIsAcceptedWithItsElementTypes) {
  for (int format = v1::FORMAT_FP32; format <= v1::Format_MAX; ++format) {
    for (const v1::Element element : {v1::ELEMENT_UNSPECIFIED, v1::ELEMENT_E4M3, v1::ELEMENT_E5M2, v1::ELEMENT_E2M1}) {
      SCOPED_TRACE(absl::StrCat(v1::Format_Name(format), " of ", v1::Element_Name(element)));
      v1::ModelSpec proto = ValidSpec();
      Format(static_cast<v1::Format>(format), element)(proto);
      const ElementTypes elements = TraitsOf(static_cast<paramshard::Format>(format)).elements;
      const bool unscaled = elements == ElementTypes::kAny;
      const bool narrow = elements == ElementTypes::kFloat4;
      const bool fits = element == v1::ELEMENT_UNSPECIFIED || unscaled || (element == v1::ELEMENT_E2M1) == narrow;
      const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
      ASSERT_EQ(spec.status().code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
      if (!fits || unscaled) continue;
      const ElementType expected = narrow                        ? ElementType::kE2M1
                                   : element == v1::ELEMENT_E5M2 ? ElementType::kE5M2
                                                                 : ElementType::kE4M3;
      EXPECT_EQ(spec->units[0].parameters[0].encoding.element, expected);
    }
  }
}

TEST(ParseModelSpecTest, DelayedScalingIsKeptWhereItIsRead) {
  v1::ModelSpec proto = ValidSpec();
  Delayed(16, -3)(proto);
  First(proto).mutable_delayed_scaling()->set_algorithm(v1::AMAX_ALGORITHM_MOST_RECENT);
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const DelayedScaling::Options& scaling = spec->units[0].parameters[0].encoding.delayed_scaling.value();
  EXPECT_EQ(scaling.algorithm, DelayedScaling::Algorithm::kMostRecent);
  EXPECT_EQ(scaling.history_length, 16);
  EXPECT_EQ(scaling.margin, -3);
  First(proto).clear_delayed_scaling();
  EXPECT_EQ(ParseModelSpec(proto)->units[0].parameters[0].encoding.delayed_scaling->history_length, 1024);
}

TEST(ParseModelSpecTest, EveryTypeOfStateIsAccepted) {
  v1::ModelSpec proto = ValidSpec();
  First(proto).set_format(v1::FORMAT_BF16);
  First(proto).set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  for (const v1::MomentType type : {v1::MOMENT_TYPE_BF16, v1::MOMENT_TYPE_FP16, v1::MOMENT_TYPE_FP8}) {
    First(proto).set_exp_avg_type(type);
    First(proto).set_exp_avg_sq_type(type);
    const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const ParameterSpec& parameter = spec->units[0].parameters[0];
    EXPECT_EQ(static_cast<int>(*parameter.exp_avg_type), type);
    EXPECT_EQ(static_cast<int>(*parameter.exp_avg_sq_type), type);
    EXPECT_EQ(parameter.master_type, MasterType::kBF16Remainder);
  }
}

// Rules overlap: the first that matches applies.
TEST(ParseModelSpecTest, ParametersTakeTheFirstRuleThatMatchesTheirName) {
  v1::ModelSpec proto = ValidSpec();
  ByRules({{"*norm", v1::FORMAT_FP32}, {"u1.?", v1::FORMAT_BF16}, {"*", v1::FORMAT_MXFP8}})(proto);
  proto.mutable_format_rules(1)->set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  proto.mutable_format_rules(1)->set_exp_avg_type(v1::MOMENT_TYPE_BF16);
  proto.mutable_format_rules(2)->set_element(v1::ELEMENT_E5M2);
  proto.mutable_format_rules(2)->set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  proto.mutable_format_rules(2)->set_exp_avg_sq_type(v1::MOMENT_TYPE_FP8);
  First(proto).set_exp_avg_type(v1::MOMENT_TYPE_BF16);  // a parameter's own field wins
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ParameterSpec& weight = spec->units[0].parameters[0];
  EXPECT_EQ(EncodingOf(weight.encoding), (Encoding{paramshard::Format::kMXFP8, ElementType::kE5M2, true}));
  EXPECT_EQ(weight.exp_avg_type, MomentType::kBF16);
  EXPECT_EQ(weight.exp_avg_sq_type, MomentType::kFP8);
  EXPECT_EQ(spec->units[0].parameters[1].encoding.format, paramshard::Format::kFP32);
  EXPECT_EQ(spec->units[1].parameters[0].encoding.format, paramshard::Format::kBF16);
  EXPECT_EQ(spec->units[1].parameters[0].master_type, MasterType::kBF16Remainder);
}

TEST(ParseModelSpecTest, AFrozenParameterHasAMasterWhereItAsksForOneAndNothingThatStepsRead) {
  v1::ModelSpec proto = ValidSpec();
  EXPECT_TRUE(ParseModelSpec(proto)->units[0].parameters[0].trainable);
  First(proto).set_trainable(false);
  const uint64_t plain = ModelSpecFingerprint(ParseModelSpec(proto).value());
  First(proto).set_gradient_type(v1::GRADIENT_TYPE_BF16);
  First(proto).set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  First(proto).set_exp_avg_sq_type(v1::MOMENT_TYPE_FP8);
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ParameterSpec& parameter = spec->units[0].parameters[0];
  EXPECT_FALSE(parameter.trainable);
  EXPECT_EQ(parameter.exp_avg_type, std::nullopt);
  EXPECT_EQ(parameter.exp_avg_sq_type, std::nullopt);
  EXPECT_EQ(parameter.master_type, std::nullopt);
  EXPECT_EQ(ModelSpecFingerprint(*spec), plain) << "what steps read does not count";
  First(proto).set_master_type(v1::MASTER_TYPE_FP32);
  EXPECT_EQ(ParseModelSpec(proto)->units[0].parameters[0].master_type, MasterType::kFP32);
  EXPECT_NE(ModelSpecFingerprint(ParseModelSpec(proto).value()), plain);
}

TEST(ParseModelSpecTest, AFrozenParameterTakesTheEncodingAloneFromARule) {
  v1::ModelSpec proto = ValidSpec();
  ByRules({{"*", v1::FORMAT_BF16}})(proto);
  proto.mutable_format_rules(0)->set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  proto.mutable_format_rules(0)->set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  First(proto).set_trainable(false);
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->units[0].parameters[0].encoding.format, paramshard::Format::kBF16);
  EXPECT_EQ(spec->units[0].parameters[0].master_type, std::nullopt);
  EXPECT_EQ(spec->units[1].parameters[0].master_type, MasterType::kBF16Remainder);
}

TEST(ParseModelSpecTest, PlacementIsCutUnlessItIsNamed) {
  v1::ModelSpec proto = ValidSpec();
  const uint64_t plain = ModelSpecFingerprint(ParseModelSpec(proto).value());
  EXPECT_EQ(ParseModelSpec(proto)->units[0].parameters[0].placement, Placement::kCut);
  First(proto).set_placement(v1::PLACEMENT_CUT);
  EXPECT_EQ(ModelSpecFingerprint(ParseModelSpec(proto).value()), plain);
  First(proto).set_placement(v1::PLACEMENT_OWNED);
  EXPECT_EQ(ParseModelSpec(proto)->units[0].parameters[0].placement, Placement::kOwned);
  EXPECT_NE(ModelSpecFingerprint(ParseModelSpec(proto).value()), plain);
}

TEST(ParseModelSpecTest, RefusesMoreOwnedMatricesThanOwnersAreChosenFor) {
  v1::ModelSpec proto = ValidSpec();
  First(proto).mutable_shape()->Clear();
  for (const int64_t dimension : {int64_t{1} << 20, int64_t{2}, int64_t{2}}) First(proto).add_shape(dimension);
  First(proto).set_placement(v1::PLACEMENT_OWNED);
  EXPECT_TRUE(ParseModelSpec(proto).ok()) << ParseModelSpec(proto).status();
  First(proto).set_shape(0, (int64_t{1} << 20) + 1);
  EXPECT_THAT(ParseModelSpec(proto).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("want at most 1048576 matrices of placement OWNED in total, got 1048577")));
  First(proto).set_placement(v1::PLACEMENT_CUT);
  EXPECT_TRUE(ParseModelSpec(proto).ok());
}

TEST(ParseModelSpecTest, AParameterThatNamesItsFormatTakesNothingFromRules) {
  v1::ModelSpec proto = ValidSpec();
  AddRule(proto, "*", v1::FORMAT_BF16).set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  const uint64_t ruled = ModelSpecFingerprint(ParseModelSpec(proto).value());
  EXPECT_EQ(ruled, ModelSpecFingerprint(ParseModelSpec(ValidSpec()).value()));
}

TEST(ParseModelSpecTest, PatternsAreGlobsOfWholeNames) {
  const struct {
    const char* pattern;
    bool matches;
  } cases[] = {{"u0.norm", true}, {"u?.norm", true},  {"*.norm", true},    {"*", true},       {"u[0-3].*", true},
               {"*0*r*", true},   {"norm", false},    {"u0.nor", false},   {"u??norm", true}, {"u?norm", false},
               {"u[!0]*", false}, {"U0.norm", false}, {"u0\\.norm", true}, {"u0\\*", false}};
  for (const auto& [pattern, matches] : cases) {
    v1::ModelSpec proto = ValidSpec();
    proto.mutable_units(0)->mutable_parameters(1)->clear_format();
    proto.mutable_units()->DeleteSubrange(1, 1);
    AddRule(proto, pattern, v1::FORMAT_BF16);
    EXPECT_EQ(ParseModelSpec(proto).ok(), matches) << pattern << ": " << ParseModelSpec(proto).status();
  }
}

// Trying every star with every part of the name would take forever.
TEST(ParseModelSpecTest, APatternOfManyStarsIsDecidedSoon) {
  v1::ModelSpec proto = ValidSpec();
  proto.mutable_units(0)->mutable_parameters(1)->set_name(std::string(512, 'a'));
  std::string pattern;
  for (int i = 0; i < 255; ++i) pattern += "*a";
  AddRule(proto, pattern + "b", v1::FORMAT_BF16);
  EXPECT_EQ(ParseModelSpec(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ParseModelSpecTest, LimitsThemselvesAreAccepted) {
  v1::ModelSpec proto = ValidSpec();
  proto.set_name(std::string(512, 'x'));
  proto.set_gather_slots(64);
  proto.set_gradient_slots(1);
  proto.set_shard_size(kMaxShardSize);
  proto.set_small_parameter_bytes(0);
  Timeout(0, 1)(proto);
  Normal(0, 0)(proto);
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->step_timeout, absl::Nanoseconds(1));
}

TEST(ParseModelSpecTest, AsManyParametersAsAreAllowedFitAMessage) {
  v1::ModelSpec proto = ValidSpec();
  for (int i = 3; i < kMaxParameters; ++i) {
    v1::ParameterSpec& parameter = *proto.mutable_units(1)->add_parameters();
    parameter.set_name(absl::StrCat(std::string(94, 'p'), i));
    parameter.add_shape(4096);
    parameter.add_shape(4096);
    parameter.set_format(v1::FORMAT_BF16);
  }
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  ASSERT_OK(spec);
  EXPECT_LT(ModelSpecToProto(*spec).ByteSizeLong(), kMaxMessageBytes);
}

v1::ModelSpec Canonical(const v1::ModelSpec& proto) {
  const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return ModelSpecToProto(*spec);
}

uint64_t FingerprintOf(const v1::ModelSpec& proto) { return ModelSpecFingerprint(ParseModelSpec(proto).value()); }

// Every field of a spec away from its default.
v1::ModelSpec UnusualSpec() {
  v1::ModelSpec proto = ValidSpec();
  proto.add_groups()->set_name("decay");
  proto.add_groups()->set_optimizer(v1::OPTIMIZER_ADAM);
  proto.mutable_groups(1)->set_bias_correction(false);
  proto.set_shard_size(4);
  proto.set_small_parameter_bytes(17);
  proto.set_gather_slots(5);
  proto.set_gradient_slots(4);
  proto.set_gradient_reduction(v1::GRADIENT_REDUCTION_SUM);
  proto.set_seed(UINT64_MAX);
  Timeout(3, 500)(proto);
  proto.set_gradient_sums(v1::GRADIENT_SUMS_AT_COMMIT);
  proto.set_accumulator_type(v1::GRADIENT_TYPE_BF16);
  proto.mutable_units(0)->set_reshard_after_forward(false);
  First(proto).set_element(v1::ELEMENT_E5M2);
  First(proto).set_gradient_type(v1::GRADIENT_TYPE_BF16);
  First(proto).set_exp_avg_type(v1::MOMENT_TYPE_BF16);
  First(proto).set_exp_avg_sq_type(v1::MOMENT_TYPE_BF16);
  First(proto).set_group(1);
  Uniform(-0.1f, 0.3f)(proto);
  proto.mutable_units(1)->mutable_parameters(0)->set_format(v1::FORMAT_FP8_BLOCK_128X128);
  proto.mutable_units(1)->mutable_parameters(0)->set_power_of_two_scales(false);
  v1::ParameterSpec& delayed = *proto.mutable_units(1)->add_parameters();
  delayed.set_name("delayed");
  delayed.set_format(v1::FORMAT_FP8_TENSOR_DELAYED);
  delayed.mutable_delayed_scaling()->set_algorithm(v1::AMAX_ALGORITHM_MOST_RECENT);
  delayed.mutable_delayed_scaling()->set_history_length(7);
  delayed.mutable_delayed_scaling()->set_margin(-1);
  delayed.set_exp_avg_type(v1::MOMENT_TYPE_FP16);
  delayed.set_exp_avg_sq_type(v1::MOMENT_TYPE_FP8);
  v1::ParameterSpec& remainder = *proto.mutable_units(1)->add_parameters();
  remainder.set_name("remainder");
  remainder.set_format(v1::FORMAT_BF16);
  remainder.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  v1::ParameterSpec& frozen = *proto.mutable_units(1)->add_parameters();
  frozen.set_name("frozen");
  frozen.set_format(v1::FORMAT_MXFP8);
  frozen.set_trainable(false);
  v1::ParameterSpec& owned = *proto.mutable_units(1)->add_parameters();
  owned.set_name("owned");
  owned.set_format(v1::FORMAT_BF16);
  owned.set_placement(v1::PLACEMENT_OWNED);
  return proto;
}

TEST(ModelSpecToProtoTest, IsTheInverseOfParsing) {
  for (const v1::ModelSpec& proto : {ValidSpec(), UnusualSpec()}) {
    const v1::ModelSpec canonical = Canonical(proto);
    EXPECT_EQ(canonical.SerializeAsString(), Canonical(canonical).SerializeAsString());
    EXPECT_EQ(FingerprintOf(proto), FingerprintOf(canonical));
    EXPECT_EQ(FirstDifference(ParseModelSpec(proto).value(), ParseModelSpec(canonical).value()), "");
  }
}

// All explicit fields of a spec are kept: the message contains its original.
TEST(ParseModelSpecTest, AParameterHasTheMomentsOfItsOptimizer) {
  for (const OptimizerTraits& traits : kOptimizers) {
    SCOPED_TRACE(traits.name);
    v1::ModelSpec proto = ValidSpec();
    proto.add_groups()->set_optimizer(static_cast<v1::Optimizer>(traits.optimizer));
    if (IsMuon(traits.optimizer)) proto.mutable_units(0)->mutable_parameters()->RemoveLast();  // no matrix
    const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
    ASSERT_OK(spec);
    const ParameterSpec& parameter = spec->units[0].parameters[0];
    EXPECT_EQ(parameter.optimizer, traits.optimizer);
    EXPECT_EQ(parameter.exp_avg_type.has_value(), traits.moment_count > 0);
    EXPECT_EQ(parameter.exp_avg_sq_type.has_value(), traits.moment_count > 1);
  }
}

TEST(MomentNamesTest, GroupsNameTheMomentsThatTheyKeep) {
  EXPECT_EQ(MomentNames({ParameterGroup()}, MomentKind::kFirst), "exp_avg");
  EXPECT_EQ(MomentNames({{.optimizer = Optimizer::kSgd}}, MomentKind::kFirst), "");
  EXPECT_EQ(MomentNames({{.optimizer = Optimizer::kLion}, {.optimizer = Optimizer::kSgdMomentum}, ParameterGroup()},
                        MomentKind::kFirst),
            "exp_avg+momentum_buffer");
  EXPECT_EQ(MomentNames({{.optimizer = Optimizer::kLion}}, MomentKind::kSecond), "");
}

TEST(ModelSpecToProtoTest, KeepsEveryFieldThatIsSet) {
  const v1::ModelSpec unusual = UnusualSpec();
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_scope(google::protobuf::util::MessageDifferencer::PARTIAL);
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(unusual, Canonical(unusual))) << difference;
}

TEST(ModelSpecToProtoTest, WritesEveryDefault) {
  const v1::ModelSpec proto = Canonical(ValidSpec());
  EXPECT_TRUE(proto.has_small_parameter_bytes() && proto.has_gather_slots() && proto.has_gradient_slots());
  EXPECT_EQ(proto.gradient_reduction(), v1::GRADIENT_REDUCTION_MEAN);
  EXPECT_EQ(proto.groups_size(), 1);
  EXPECT_EQ(proto.groups(0).optimizer(), v1::OPTIMIZER_ADAMW);
  EXPECT_TRUE(proto.groups(0).has_bias_correction());
  for (const v1::UnitSpec& unit : proto.units()) {
    EXPECT_TRUE(unit.has_reshard_after_forward());
    for (const v1::ParameterSpec& parameter : unit.parameters()) {
      EXPECT_EQ(parameter.element(), v1::ELEMENT_E4M3);
      EXPECT_TRUE(parameter.has_power_of_two_scales());
      EXPECT_EQ(parameter.gradient_type(), v1::GRADIENT_TYPE_FP32);
      EXPECT_EQ(parameter.exp_avg_type(), v1::MOMENT_TYPE_FP32);
      EXPECT_EQ(parameter.exp_avg_sq_type(), v1::MOMENT_TYPE_FP32);
      EXPECT_EQ(parameter.master_type(), v1::MASTER_TYPE_FP32);
      EXPECT_TRUE(parameter.initial_value().has_constant());
    }
  }
}

TEST(ModelSpecFingerprintTest, FieldsThatAFormatDoesNotReadDoNotCount) {
  v1::ModelSpec proto = ValidSpec();
  const uint64_t plain = FingerprintOf(proto);
  proto.mutable_units(0)->mutable_parameters(1)->set_element(v1::ELEMENT_E5M2);   // FP32
  proto.mutable_units(0)->mutable_parameters(1)->set_power_of_two_scales(false);  // FP32
  First(proto).set_power_of_two_scales(false);                                    // MXFP8
  First(proto).mutable_delayed_scaling()->set_history_length(5);                  // MXFP8
  First(proto).mutable_initial_value()->mutable_constant()->set_value(0);         // as unset
  proto.add_groups();                                                             // as none
  EXPECT_EQ(FingerprintOf(proto), plain);
}

TEST(ModelSpecFingerprintTest, AModelByRulesEqualsTheOneThatNamesItsFormats) {
  v1::ModelSpec proto = ValidSpec();
  const uint64_t named = FingerprintOf(proto);
  ByRules({{"*.w", v1::FORMAT_MXFP8}, {"*", v1::FORMAT_FP32}})(proto);
  EXPECT_EQ(FingerprintOf(proto), named);
  EXPECT_EQ(Canonical(proto).format_rules_size(), 0);
}

// Any change of the canonical form fails here.
TEST(ModelSpecFingerprintTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(FingerprintOf(ValidSpec()), uint64_t{9829061009617016079u});
}

// Valid messages with random bytes in them: no crash, and an accepted spec survives the round trip.
TEST(ParseModelSpecTest, DamagedMessagesAreRefusedOrMeanSomething) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  const google::protobuf::LogSilencer no_words_about_utf8;
  const std::string valid = UnusualSpec().SerializeAsString();
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = valid;
    for (uint64_t damage = random() % 4 + 1; damage > 0; --damage) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::ModelSpec proto;
    if (!proto.ParseFromString(bytes)) continue;
    const absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
    if (!spec.ok()) continue;
    ++accepted;
    const v1::ModelSpec canonical = ModelSpecToProto(*spec);
    ASSERT_EQ(canonical.SerializeAsString(), Canonical(canonical).SerializeAsString());
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace paramshard
