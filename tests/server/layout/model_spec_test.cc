#include "server/layout/model_spec.h"

#include <functional>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace paramshard::server {
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

std::function<void(v1::ModelSpec&)> Timeout(int64_t seconds, int32_t nanos) {
  return [=](v1::ModelSpec& spec) {
    spec.mutable_step_timeout()->set_seconds(seconds);
    spec.mutable_step_timeout()->set_nanos(nanos);
  };
}

#define SET(statement) [](v1::ModelSpec& spec) { statement; }

const Refusal kRefusals[] = {
    {"ModelNameEmpty", SET(spec.set_name("")),
     "create model \"\": ", "1 to 512 bytes of UTF-8 without NUL, got an empty one"},
    {"ModelNameLong", SET(spec.set_name(std::string(1 << 20, 'x'))), "create model xxxx", "got 1048576 bytes"},
    {"ModelNameNul", SET(spec.set_name(std::string("a\0b", 3))), "create model a\\x00", "got a NUL"},
    {"ModelNameNotUtf8", SET(spec.set_name("a\xff")), "create model a\\xff: ", "got other bytes: a\\xff"},
    {"ModelNameWithSlash", SET(spec.set_name("a/b")),
     "create model a/b: ", "expected a model name without '/', got a/b"},
    {"NoUnits", SET(spec.clear_units()), "create model m: ", "expected at least one unit, got none"},
    {"NoParameters", SET(spec.mutable_units(1)->clear_parameters()),
     "create model m: unit u1: ", "expected at least one parameter, got none"},
    {"TooManyParameters", SET(for (int i = 0; i < 1'000'000; ++i) spec.mutable_units(1)->add_parameters()),
     "create model m: ", "expected at most 1000000 parameters, got 1000003"},
    {"UnitNameEmpty", SET(spec.mutable_units(1)->set_name("")), "create model m: unit 1: ", "got an empty one"},
    {"UnitNameLong", SET(spec.mutable_units(1)->set_name(std::string(513, 'x'))),
     "create model m: unit 1: ", "got 513 bytes"},
    {"UnitNameTwice", SET(spec.mutable_units(1)->set_name("u0")),
     "create model m: unit u0: ", "expected a name that no other unit has"},
    {"ParameterNameEmpty", SET(First(spec).set_name("")),
     "create model m: parameter 0 of unit u0: ", "got an empty one"},
    {"ParameterNameLong", SET(First(spec).set_name(std::string(513, 'x'))),
     "create model m: parameter 0 of unit u0: ", "got 513 bytes"},
    {"ParameterNameNul", SET(First(spec).set_name(std::string("\0", 1))),
     "create model m: parameter 0 of unit u0: ", "got a NUL in \\x00"},
    {"ParameterNameNotUtf8", SET(First(spec).set_name("\xed\xa0\x80")),
     "create model m: parameter 0 of unit u0: ", "got other bytes"},
    {"ParameterNameTwiceInAUnit", SET(First(spec).set_name("u0.norm")),
     "create model m: parameter u0.norm: ", "expected a name that no other parameter has"},
    {"ParameterNameTwiceInTheModel", SET(First(spec).set_name("u1.w")),
     "create model m: parameter u1.w: ", "expected a name that no other parameter has"},
    {"DimensionZero", Shape({4, 0}), "create model m: parameter u0.w: ", "expected dimensions >= 1, got shape [4, 0]"},
    {"DimensionNegative", Shape({-1, 8}),
     "create model m: parameter u0.w: ", "expected dimensions >= 1, got shape [-1, 8]"},
    {"NineDimensions", Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}),
     "create model m: parameter u0.w: ", "expected at most 8 dimensions, got 9"},
    {"TwoTo40Elements", Shape({1 << 20, 1 << 20}),
     "create model m: parameter u0.w: ", "expected fewer than 2^40 elements"},
    {"ProductOverflows", Shape({INT64_MAX, INT64_MAX}),
     "create model m: parameter u0.w: ", "expected fewer than 2^40 elements"},
    {"ProductWrapsToSmall", Shape({int64_t{1} << 32, int64_t{1} << 32, 4}),
     "create model m: parameter u0.w: ", "expected fewer than 2^40 elements"},
    {"NoFormat", Format(v1::FORMAT_UNSPECIFIED), "create model m: parameter u0.w: ", "expected a format, got none"},
    {"UnknownFormat", Format(static_cast<v1::Format>(77)),
     "create model m: parameter u0.w: ", "expected a format, got 77"},
    {"NegativeFormat", Format(static_cast<v1::Format>(-1)),
     "create model m: parameter u0.w: ", "expected a format, got -1"},
    {"UnknownElement", Format(v1::FORMAT_MXFP8, static_cast<v1::Element>(4)),
     "create model m: parameter u0.w: ", "expected an element type, got 4"},
    {"ElementOfAnotherFormat", Format(v1::FORMAT_MXFP8, v1::ELEMENT_E2M1),
     "create model m: parameter u0.w: ", "expected an encoding that this build has, got MXFP8 of E2M1"},
    {"FormatNotImplemented", Format(v1::FORMAT_NVFP4_2D), "create model m: parameter u0.w: ", "got NVFP4_2D of E2M1",
     absl::StatusCode::kUnimplemented},
    {"UnknownGradientType", SET(First(spec).set_gradient_type(static_cast<v1::GradientType>(3))),
     "create model m: parameter u0.w: ", "expected a gradient type, got 3"},
    {"UnknownExpAvgType", SET(First(spec).set_exp_avg_type(static_cast<v1::MomentType>(9))),
     "create model m: parameter u0.w: ", "expected a type of exp_avg, got 9"},
    {"UnknownExpAvgSqType", SET(First(spec).set_exp_avg_sq_type(static_cast<v1::MomentType>(9))),
     "create model m: parameter u0.w: ", "expected a type of exp_avg_sq, got 9"},
    {"GroupNegative", SET(First(spec).set_group(-1)),
     "create model m: parameter u0.w: ", "expected a group in [0, 0], got -1"},
    {"GroupTooHigh", SET(spec.add_groups(); spec.add_groups(); First(spec).set_group(2)),
     "create model m: parameter u0.w: ", "expected a group in [0, 1], got 2"},
    {"ConstantNotFinite", SET(First(spec).mutable_initial_value()->mutable_constant()->set_value(kInfinity)),
     "create model m: parameter u0.w: ", "expected a finite constant, got inf"},
    {"MeanNotFinite", Normal(kNaN, 1), "create model m: parameter u0.w: ", "expected a finite mean"},
    {"DeviationNegative", Normal(0, -1), "create model m: parameter u0.w: ", "standard deviation >= 0, got 0 and -1"},
    {"DeviationNotFinite", Normal(0, kInfinity), "create model m: parameter u0.w: ", "a finite standard deviation"},
    {"UniformEmpty", Uniform(1, 1),
     "create model m: parameter u0.w: ", "expected finite low < high, got low 1, high 1"},
    {"UniformReversed", Uniform(2, 1), "create model m: parameter u0.w: ", "expected finite low < high"},
    {"UniformNotFinite", Uniform(-kInfinity, 1), "create model m: parameter u0.w: ", "expected finite low < high"},
    {"GroupNameLong", SET(spec.add_groups()->set_name(std::string(513, 'x'))),
     "create model m: group 0: ", "got 513 bytes"},
    {"UnknownMode", SET(spec.add_groups()->set_mode(static_cast<v1::AdamMode>(3))),
     "create model m: group 0: ", "expected a mode, got 3"},
    {"ShardSizeZero", SET(spec.set_shard_size(0)), "create model m: ", "expected shard_size in [1, 4096], got 0"},
    {"ShardSizeTooLarge", SET(spec.set_shard_size(4097)),
     "create model m: ", "expected shard_size in [1, 4096], got 4097"},
    {"SmallParameterBytesNegative", SET(spec.set_small_parameter_bytes(-1)),
     "create model m: ", "expected small_parameter_bytes >= 0, got -1"},
    {"GatherSlotsZero", SET(spec.set_gather_slots(0)), "create model m: ", "expected gather_slots in [1, 64], got 0"},
    {"GatherSlotsTooMany", SET(spec.set_gather_slots(65)),
     "create model m: ", "expected gather_slots in [1, 64], got 65"},
    {"GradientSlotsZero", SET(spec.set_gradient_slots(0)),
     "create model m: ", "expected gradient_slots in [1, 64], got 0"},
    {"GradientSlotsTooMany", SET(spec.set_gradient_slots(65)),
     "create model m: ", "expected gradient_slots in [1, 64], got 65"},
    {"UnknownReduction", SET(spec.set_gradient_reduction(static_cast<v1::GradientReduction>(3))),
     "create model m: ", "expected a gradient reduction, got 3"},
    {"TimeoutZero", Timeout(0, 0), "create model m: step_timeout: ", "expected a duration > 0, got 0 s and 0 ns"},
    {"TimeoutNegative", Timeout(-1, 0), "create model m: step_timeout: ", "expected a duration > 0, got -1 s and 0 ns"},
    {"TimeoutNanosOutOfRange", Timeout(1, 1'000'000'000), "create model m: step_timeout: ", "expected a duration > 0"},
    {"TimeoutSignsDiffer", Timeout(1, -1), "create model m: step_timeout: ", "expected a duration > 0"},
    {"TimeoutTooLong", Timeout(INT64_MAX, 0), "create model m: step_timeout: ", "expected a duration > 0"},
    {"TotalBytesOverflow", SET(for (int i = 0; i < 1000; ++i) {
       v1::ParameterSpec& parameter = *spec.mutable_units(1)->add_parameters();
       parameter = First(spec);
       parameter.set_name(absl::StrCat("large", i));
       parameter.set_shape(1, (int64_t{1} << 38) - 1);
     }),
     "create model m: parameter large", "expected sizes that fit 64 bits"},
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
  EXPECT_EQ(parameter.rows, 4);
  EXPECT_EQ(parameter.columns, 8);
  EXPECT_EQ(parameter.encoding, (Encoding{paramshard::Format::kMXFP8, ElementType::kE4M3, true}));
  EXPECT_EQ(parameter.gradient_type, GradientType::kFP32);
  EXPECT_EQ(parameter.exp_avg_type, MomentType::kFP32);
  EXPECT_EQ(parameter.exp_avg_sq_type, MomentType::kFP32);
  EXPECT_EQ(parameter.initial_value.kind, Initializer::kZeros);
  ASSERT_EQ(spec->groups.size(), 1u);
  EXPECT_EQ(spec->groups[0].mode, AdamMode::kAdamW);
  EXPECT_TRUE(spec->groups[0].bias_correction);
  EXPECT_FALSE(spec->shard_size.has_value());
  EXPECT_EQ(spec->small_parameter_bytes, 262144);
  EXPECT_EQ(spec->gather_slots, 3);
  EXPECT_EQ(spec->gradient_slots, 2);
  EXPECT_TRUE(spec->mean_gradients);
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
    EXPECT_EQ(spec->units[0].parameters[0].rows, rows);
    EXPECT_EQ(spec->units[0].parameters[0].columns, columns);
  }
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

TEST(ParseModelSpecTest, AMillionParametersAreAccepted) {
  v1::ModelSpec proto = ValidSpec();
  for (int i = 3; i < 1'000'000; ++i) {
    v1::ParameterSpec& parameter = *proto.mutable_units(1)->add_parameters();
    parameter.set_name(absl::StrCat("p", i));
    parameter.add_shape(4096);
    parameter.add_shape(4096);
    parameter.set_format(v1::FORMAT_BF16);
  }
  EXPECT_TRUE(ParseModelSpec(proto).ok());
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
  proto.add_groups()->set_mode(v1::ADAM_MODE_L2);
  proto.mutable_groups(1)->set_bias_correction(false);
  proto.set_shard_size(4);
  proto.set_small_parameter_bytes(17);
  proto.set_gather_slots(5);
  proto.set_gradient_slots(4);
  proto.set_gradient_reduction(v1::GRADIENT_REDUCTION_SUM);
  proto.set_seed(UINT64_MAX);
  Timeout(3, 500)(proto);
  proto.mutable_units(0)->set_reshard_after_forward(false);
  First(proto).set_element(v1::ELEMENT_E5M2);
  First(proto).set_gradient_type(v1::GRADIENT_TYPE_BF16);
  First(proto).set_exp_avg_type(v1::MOMENT_TYPE_BF16);
  First(proto).set_exp_avg_sq_type(v1::MOMENT_TYPE_BF16);
  First(proto).set_group(1);
  Uniform(-0.1f, 0.3f)(proto);
  proto.mutable_units(1)->mutable_parameters(0)->set_format(v1::FORMAT_FP8_BLOCK_128X128);
  proto.mutable_units(1)->mutable_parameters(0)->set_power_of_two_scales(false);
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

// What a spec says explicitly is said again: the message contains the one that it came from.
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
  EXPECT_EQ(proto.groups(0).mode(), v1::ADAM_MODE_ADAMW);
  EXPECT_TRUE(proto.groups(0).has_bias_correction());
  for (const v1::UnitSpec& unit : proto.units()) {
    EXPECT_TRUE(unit.has_reshard_after_forward());
    for (const v1::ParameterSpec& parameter : unit.parameters()) {
      EXPECT_EQ(parameter.element(), v1::ELEMENT_E4M3);
      EXPECT_TRUE(parameter.has_power_of_two_scales());
      EXPECT_EQ(parameter.gradient_type(), v1::GRADIENT_TYPE_FP32);
      EXPECT_EQ(parameter.exp_avg_type(), v1::MOMENT_TYPE_FP32);
      EXPECT_EQ(parameter.exp_avg_sq_type(), v1::MOMENT_TYPE_FP32);
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
  First(proto).mutable_initial_value()->mutable_constant()->set_value(0);         // as unset
  proto.add_groups();                                                             // as none
  EXPECT_EQ(FingerprintOf(proto), plain);
}

// Any change of the canonical form shows here.
TEST(ModelSpecFingerprintTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(FingerprintOf(ValidSpec()), uint64_t{1379991300293587437});
}

// Valid messages with random bytes in them: no crash, and what is accepted survives the way back.
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
}  // namespace paramshard::server
