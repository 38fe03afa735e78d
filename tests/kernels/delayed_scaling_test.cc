#include "kernels/formats/delayed_scaling.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/float8.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

DelayedScaling::Options Window(int64_t length) { return {.history_length = length}; }

TEST(DelayedScalingTest, ScaleFollowsTheLargestAmaxOfTheWindow) {
  DelayedScaling scaling(Window(2), E4M3::kMax);
  EXPECT_EQ(scaling.scale(), 1.0f);
  EXPECT_EQ(scaling.Update(448.0f), 1.0f);
  EXPECT_EQ(scaling.Update(224.0f), 1.0f);
  EXPECT_EQ(scaling.Update(112.0f), 2.0f);
  EXPECT_EQ(scaling.scale(), 2.0f);
  EXPECT_THAT(scaling.history(), ElementsAre(112.0f, 224.0f));
}

TEST(DelayedScalingTest, MostRecentLooksAtOneStep) {
  DelayedScaling scaling({.algorithm = DelayedScaling::Algorithm::kMostRecent, .history_length = 3}, E5M2::kMax);
  scaling.Update(57344.0f);
  EXPECT_EQ(scaling.Update(28672.0f), 2.0f);
  EXPECT_THAT(scaling.history(), ElementsAre(28672.0f, 57344.0f, 0.0f));
}

TEST(DelayedScalingTest, MarginLeavesRoomAbove) {
  DelayedScaling wide({.history_length = 1, .margin = 3}, E4M3::kMax);
  EXPECT_EQ(wide.Update(448.0f), 0.125f);
  DelayedScaling narrow({.history_length = 1, .margin = -1}, E4M3::kMax);
  EXPECT_EQ(narrow.Update(448.0f), 2.0f);
}

TEST(DelayedScalingTest, UnusableAmaxKeepsTheScale) {
  DelayedScaling scaling(Window(1), E4M3::kMax, 3.0f);
  for (float amax : {0.0f, kInfinity, kNan}) EXPECT_EQ(scaling.Update(amax), 3.0f);
  EXPECT_EQ(scaling.Update(0x1p-149f), std::numeric_limits<float>::max());
}

TEST(DelayedScalingTest, ScaleStaysUntilAnOverflowHasLeftTheWindow) {
  for (float overflow : {kInfinity, kNan, -kNan}) {
    DelayedScaling scaling(Window(3), E4M3::kMax);
    scaling.Update(224.0f);
    EXPECT_EQ(scaling.Update(overflow), 2.0f);
    EXPECT_EQ(scaling.Update(448.0f), 2.0f);
    EXPECT_EQ(scaling.Update(448.0f), 2.0f);
    EXPECT_EQ(scaling.Update(448.0f), 1.0f);
  }
}

TEST(DelayedScalingTest, RestoredWindowGoesOnAsBefore) {
  DelayedScaling scaling(Window(3), E4M3::kMax);
  for (float amax : {1.0f, 9.0f, 3.0f, 2.0f}) scaling.Update(amax);
  DelayedScaling restored(Window(3), E4M3::kMax, scaling.scale(), scaling.history());
  EXPECT_EQ(restored.scale(), scaling.scale());
  for (float amax : {0.5f, 7.0f, 1.0f, 1.0f, 1.0f}) {
    EXPECT_EQ(restored.Update(amax), scaling.Update(amax));
    EXPECT_EQ(restored.history(), scaling.history());
  }
}

TEST(DelayedScalingTest, OptionsOutOfRangeAreRefused) {
  EXPECT_OK(DelayedScaling::Check({}));
  EXPECT_OK(DelayedScaling::Check(Window(1)));
  EXPECT_THAT(DelayedScaling::Check(Window(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("history length from 1 to 65536, got 0")));
  EXPECT_THAT(DelayedScaling::Check(Window(1 << 20)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1048576")));
  EXPECT_THAT(DelayedScaling::Check({.margin = 65}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("margin from -64 to 64, got 65")));
}

}  // namespace
}  // namespace paramshard
