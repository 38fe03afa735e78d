#include "client/internal/prefetch_plan.h"

#include <string>

#include "gmock/gmock.h"

namespace paramshard::internal {
namespace {

// A step of gathers, one letter for each unit; upper case is backward.
PlannedGather FromLetter(char letter) {
  const bool backward = letter < 'a';
  return {.unit = letter - (backward ? 'A' : 'a'), .phase = backward ? Phase::kBackward : Phase::kForward};
}

// Notes gathers; which of them were expected, as a string of 1 and 0.
std::string Advance(PrefetchPlan& plan, const std::string& gathers) {
  std::string expected;
  for (char letter : gathers) expected += plan.Advance(FromLetter(letter)) ? '1' : '0';
  return expected;
}

TEST(PrefetchPlanTest, TheFirstStepExpectsNothing) {
  PrefetchPlan plan;
  EXPECT_EQ(Advance(plan, "abcCB"), "00000");
  EXPECT_FALSE(plan.Expected(0).has_value());
}

TEST(PrefetchPlanTest, LaterStepsFollowTheFirst) {
  PrefetchPlan plan;
  Advance(plan, "abcCB");
  for (int step = 0; step < 3; ++step) {
    plan.EndStep();
    EXPECT_EQ(Advance(plan, "ab"), "11");
    EXPECT_EQ(plan.Expected(0), FromLetter('c'));
    EXPECT_EQ(plan.Expected(2), FromLetter('B'));
    EXPECT_FALSE(plan.Expected(3).has_value());
    EXPECT_EQ(Advance(plan, "cCB"), "111");
  }
}

TEST(PrefetchPlanTest, AnEvaluationBeforeAStepIsForgotten) {
  PrefetchPlan plan;
  Advance(plan, "abcCB");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "abc"), "111");      // the evaluation
  EXPECT_EQ(Advance(plan, "abcCB"), "00000");  // the step
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "abcCB"), "11111");
}

TEST(PrefetchPlanTest, AfterADeviationNothingIsExpectedUntilTheStepEnds) {
  PrefetchPlan plan;
  Advance(plan, "abc");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "ac"), "10");
  EXPECT_FALSE(plan.Expected(0).has_value());
}

TEST(PrefetchPlanTest, AStepThatGrowsIsRecordedToItsEnd) {
  PrefetchPlan plan;
  Advance(plan, "ab");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "abc"), "110");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "abc"), "111");
}

TEST(PrefetchPlanTest, AStepThatShrinksIsTheNextPlan) {
  PrefetchPlan plan;
  Advance(plan, "abc");
  plan.EndStep();
  Advance(plan, "a");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "a"), "1");
  EXPECT_FALSE(plan.Expected(0).has_value());
}

TEST(PrefetchPlanTest, ThePhaseMatters) {
  PrefetchPlan plan;
  Advance(plan, "a");
  plan.EndStep();
  EXPECT_EQ(Advance(plan, "A"), "0");
}

}  // namespace
}  // namespace paramshard::internal
