#include "client/examples/storage.h"

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace paramshard::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StorageTest, TheElementFollowsTheFormat) {
  ASSERT_OK_AND_ASSIGN(Storage storage, ParseStorage({.format = "MXFP8"}));
  EXPECT_EQ(storage.encoding.element, ElementType::kE4M3);
  ASSERT_OK_AND_ASSIGN(storage, ParseStorage({.format = "MXFP8", .element = "E5M2"}));
  EXPECT_EQ(storage.encoding.element, ElementType::kE5M2);
  ASSERT_OK_AND_ASSIGN(storage, ParseStorage({.format = "NVFP4_2D"}));
  EXPECT_EQ(storage.encoding.element, ElementType::kE2M1);
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
  EXPECT_THAT(ParseStorage({.moments = "FP64"}), refused("FP64"));
  EXPECT_THAT(ParseStorage({.exp_avg = "BF17"}), refused("BF17"));
  EXPECT_THAT(ParseStorage({.exp_avg_sq = "bf16"}), refused("bf16"));
}

TEST(StorageTest, ArgumentsSayTheSame) {
  EXPECT_THAT(ToArguments({.format = "MXFP8", .moments = "BF16", .exp_avg_sq = "FP32"}),
              ElementsAre("--format=MXFP8", "--moments=BF16", "--exp-avg-sq=FP32"));
}

TEST(StorageTest, VectorsStayFP32) {
  std::vector<UnitSpec> units = {{.parameters = {{.shape = {4, 4}}, {.shape = {4}}}}};
  SetStorage({.encoding = {.format = Format::kBF16}, .exp_avg = MomentType::kBF16}, units);
  EXPECT_EQ(units[0].parameters[0].encoding.format, Format::kBF16);
  EXPECT_EQ(units[0].parameters[1].encoding.format, Format::kFP32);
  EXPECT_EQ(units[0].parameters[0].exp_avg_type, MomentType::kBF16);
  EXPECT_EQ(units[0].parameters[1].exp_avg_type, MomentType::kBF16);
  EXPECT_EQ(units[0].parameters[1].exp_avg_sq_type, MomentType::kFP32);
}

}  // namespace
}  // namespace paramshard::examples
