#include "client/demo/storage.h"

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(StorageTest, TheLastRuleIsForEveryName) {
  ASSERT_OK_AND_ASSIGN(Storage storage, ParseStorage({.format = "MXFP8", .element = "E5M2"}));
  ASSERT_THAT(storage.rules, SizeIs(1));
  EXPECT_EQ(storage.rules[0].pattern, "*");
  EXPECT_EQ(storage.rules[0].encoding.format, Format::kMXFP8);
  EXPECT_EQ(storage.rules[0].encoding.element, ElementType::kE5M2);
  EXPECT_EQ(storage.rules[0].master_type, std::nullopt);
  ASSERT_OK_AND_ASSIGN(storage, ParseStorage({.format = "BF16", .master = "BF16_REMAINDER"}));
  EXPECT_EQ(storage.rules[0].encoding.element, std::nullopt);
  EXPECT_EQ(storage.rules[0].master_type, MasterType::kBF16Remainder);
}

TEST(StorageTest, ExceptionsComeBeforeIt) {
  ASSERT_OK_AND_ASSIGN(const Storage storage,
                       ParseStorage({.format = "NVFP4_2D", .rules = {"embedding.*=BF16", "a=b=FP32"}}));
  ASSERT_THAT(storage.rules, SizeIs(3));
  EXPECT_EQ(storage.rules[0].pattern, "embedding.*");
  EXPECT_EQ(storage.rules[0].encoding.format, Format::kBF16);
  EXPECT_EQ(storage.rules[1].pattern, "a=b");
  EXPECT_EQ(storage.rules[2].encoding.format, Format::kNVFP4_2D);
}

TEST(StorageTest, EachMomentMayDifferFromTheOthers) {
  ASSERT_OK_AND_ASSIGN(Storage storage, ParseStorage({.moments = "BF16"}));
  EXPECT_EQ(storage.exp_avg, MomentType::kBF16);
  EXPECT_EQ(storage.exp_avg_sq, MomentType::kBF16);
  ASSERT_OK_AND_ASSIGN(storage, ParseStorage({.moments = "BF16", .exp_avg = "FP8"}));
  EXPECT_EQ(storage.exp_avg, MomentType::kFP8);
  EXPECT_EQ(storage.exp_avg_sq, MomentType::kBF16);
  ASSERT_OK_AND_ASSIGN(storage, ParseStorage({.exp_avg_sq = "FP16"}));
  EXPECT_EQ(storage.exp_avg, MomentType::kFP32);
  EXPECT_EQ(storage.exp_avg_sq, MomentType::kFP16);
}

TEST(StorageTest, UnknownNamesAreSaid) {
  const auto refused = [](const char* name) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)); };
  EXPECT_THAT(ParseStorage({.format = "FP7"}), refused("FP7"));
  EXPECT_THAT(ParseStorage({.element = "E3M4"}), refused("E3M4"));
  EXPECT_THAT(ParseStorage({.master = "BF16"}), refused("BF16"));
  EXPECT_THAT(ParseStorage({.rules = {"no-format"}}), refused("no-format"));
  EXPECT_THAT(ParseStorage({.rules = {"*=FP6"}}), refused("FP6"));
  EXPECT_THAT(ParseStorage({.moments = "FP64"}), refused("FP64"));
  EXPECT_THAT(ParseStorage({.exp_avg = "BF17"}), refused("BF17"));
  EXPECT_THAT(ParseStorage({.exp_avg_sq = "bf16"}), refused("bf16"));
  EXPECT_THAT(ParseStorage({.accumulators = "FP8"}), refused("accumulators: want FP32 or BF16"));
}

TEST(StorageTest, ArgumentsSayTheSame) {
  EXPECT_THAT(ToArguments({.format = "MXFP8", .rules = {"a=BF16", "b=FP32"}, .moments = "BF16", .exp_avg_sq = "FP32"}),
              ElementsAre("--format=MXFP8", "--rule=a=BF16", "--rule=b=FP32", "--moments=BF16", "--exp-avg-sq=FP32",
                          "--accumulators=FP32"));
  EXPECT_THAT(ToArguments({.accumulators = "BF16"}), Contains("--accumulators=BF16"));
}

TEST(StorageTest, AccumulatorsAreTheModels) {
  ModelSpec model;
  ASSERT_OK_AND_ASSIGN(const Storage storage, ParseStorage({.accumulators = "BF16"}));
  SetStorage(storage, model);
  EXPECT_EQ(model.accumulator_type, GradientType::kBF16);
}

TEST(StorageTest, VectorsStayFP32) {
  ModelSpec model{.units = {{.parameters = {{.shape = {4, 4}}, {.shape = {4}}}}}};
  SetStorage({.exp_avg = MomentType::kBF16}, model);
  const std::vector<ParameterSpec>& parameters = model.units[0].parameters;
  ASSERT_THAT(model.format_rules, SizeIs(1));
  EXPECT_EQ(parameters[0].encoding.format, std::nullopt);
  EXPECT_EQ(parameters[1].encoding.format, Format::kFP32);
  EXPECT_EQ(parameters[0].exp_avg_type, MomentType::kBF16);
  EXPECT_EQ(parameters[1].exp_avg_type, MomentType::kBF16);
  EXPECT_EQ(parameters[1].exp_avg_sq_type, MomentType::kFP32);
}

}  // namespace
}  // namespace paramshard::demo
