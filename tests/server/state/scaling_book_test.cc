#include "server/state/scaling_book.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kCurrent = 0;
constexpr int kDelayed = 1;
constexpr int kPlain = 2;

// History of two steps.
ModelSpec TestSpec() {
  v1::ParameterSpec delayed = MakeParameter("delayed", {4, 4}, v1::FORMAT_FP8_TENSOR_DELAYED);
  delayed.mutable_delayed_scaling()->set_history_length(2);
  return Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("current", {4, 4}, v1::FORMAT_FP8_TENSOR_CURRENT), delayed,
                                             MakeParameter("plain", {4, 4})})}));
}

class ScalingBookTest : public testing::Test {
 protected:
  // Measures both parameters and settles.
  void Begin(float amax) {
    book_.AddMaster(0, kCurrent, amax);
    book_.AddMaster(0, kDelayed, amax);
    book_.Settle(book_.Offer());
  }
  void Step(float amax) {
    book_.AddStep(0, kDelayed, amax);
    book_.Settle(book_.Offer());
  }

  const ModelSpec spec_ = TestSpec();
  ScalingBook book_{spec_};
};

TEST_F(ScalingBookTest, OnlyFormatsThatNeedAnAmaxAreInIt) {
  EXPECT_FALSE(book_.empty());
  book_.AddStep(0, kPlain, 5);
  book_.AddMaster(0, kPlain, 5);
  EXPECT_EQ(book_.Present(0, kPlain).scale, 1.0f);
  EXPECT_THAT(book_.Offer(), ElementsAre(-1, -1, 0, 0));
  const ModelSpec plain = Parse(MakeSpec("m", {MakeUnit("a", {MakeParameter("w", {4, 4})})}));
  EXPECT_TRUE(ScalingBook(plain).empty());
  EXPECT_THAT(ScalingBook(plain).Offer(), IsEmpty());
}

TEST_F(ScalingBookTest, HistoriesAreCountedOnceTheyAreThere) {
  EXPECT_EQ(book_.history_bytes(), 0);
  Begin(7);
  EXPECT_EQ(book_.history_bytes(), 2 * 4) << "of the delayed one";
  Step(3);
  EXPECT_EQ(book_.history_bytes(), 2 * 4);
}

TEST_F(ScalingBookTest, TheFirstScaleIsThatOfTheMasterAtCreation) {
  Begin(7);
  EXPECT_EQ(book_.Present(0, kCurrent).amax, 7);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 64);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 64);
}

TEST_F(ScalingBookTest, AStepsPlanesHaveTheScaleOfBeforeAndTheNextOnesFollowIt) {
  Begin(7);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 64);
  Step(14);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 64);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32);
  Step(3.5);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 32);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32) << "14 is in the window";
  Step(3.5);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 128);
}

TEST_F(ScalingBookTest, TheLargestOfTheRanksCounts) {
  Begin(7);
  for (float amax : {1.0f, 28.0f, 2.0f}) book_.AddStep(0, kDelayed, amax);
  EXPECT_THAT(book_.Offer(), ElementsAre(-1, 28, 0, 0));
  book_.Settle(book_.Offer());
  EXPECT_EQ(book_.Present(0, kDelayed).amax, 28);
  EXPECT_THAT(book_.Offer(), ElementsAre(-1, -1, 0, 0));
}

TEST_F(ScalingBookTest, WhatTookNoStepKeepsItsValues) {
  Begin(7);
  Step(14);
  book_.AddStep(0, kCurrent, 2);
  book_.Settle(book_.Offer());
  EXPECT_EQ(book_.Present(0, kCurrent).amax, 2);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 64);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32);
}

TEST_F(ScalingBookTest, MeasuringAMasterAgainRollsNothing) {
  Begin(7);
  Step(14);
  Begin(14);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 64);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32);
  Step(3.5);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32) << "14 has entered once";
  Step(3.5);
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 128);
}

TEST_F(ScalingBookTest, AStepThatWasNotSettledIsMadeUpFor) {
  Begin(7);
  book_.AddStep(0, kDelayed, 14);
  Begin(14);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 64) << "what the step encoded with";
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 32);
}

TEST_F(ScalingBookTest, AnImportBeginsHistoriesAnewOnEveryDaemon) {
  ScalingBook other(spec_);
  Begin(7);
  Step(14);
  other.AddMaster(0, kDelayed, 3.5);
  other.AddMaster(0, kCurrent, 3.5);
  book_.AddMaster(0, kDelayed, 1.75);
  book_.AddMaster(0, kCurrent, 1.75);
  std::vector<float> largest = book_.Offer();
  const std::vector<float> offer = other.Offer();
  EXPECT_THAT(largest, ElementsAre(1.75, 1.75, 1, 0)) << "no step has entered that of the first";
  for (size_t i = 0; i < offer.size(); ++i) largest[i] = std::max(largest[i], offer[i]);
  for (ScalingBook* book : {&book_, &other}) {
    book->Settle(largest);
    EXPECT_EQ(book->Present(0, kDelayed).scale, 128);
    EXPECT_EQ(book->Next(0, kDelayed).scale, 128);
    EXPECT_EQ(book->Present(0, kCurrent).amax, 3.5);
  }
}

TEST_F(ScalingBookTest, ARestartForgets) {
  Begin(7);
  book_.AddStep(0, kDelayed, 1000);
  book_.Restart();
  EXPECT_THAT(book_.Offer(), ElementsAre(-1, -1, 0, 0));
  Begin(3.5);
  EXPECT_EQ(book_.Present(0, kDelayed).scale, 128);
}

TEST_F(ScalingBookTest, InfinityAndZeroKeepTheScale) {
  Begin(7);
  Step(std::numeric_limits<float>::infinity());
  EXPECT_EQ(book_.Next(0, kDelayed).scale, 64);
  ScalingBook zero(spec_);
  zero.AddMaster(0, kDelayed, 0);
  zero.Settle(zero.Offer());
  EXPECT_EQ(zero.Present(0, kDelayed).scale, 1);
}

TEST_F(ScalingBookTest, AnotherBookGoesOnFromItsRecords) {
  Begin(7);
  Step(3);
  Step(5);
  ScalingBook other(spec_);
  other.AddMaster(0, kDelayed, 1000);
  other.Settle(other.Offer());
  other.Restore(book_.records());
  EXPECT_EQ(other.records(), book_.records());
  for (const float amax : {2.0f, 11.0f, 4.0f}) {
    Step(amax);
    other.AddStep(0, kDelayed, amax);
    other.Settle(other.Offer());
    EXPECT_EQ(other.records(), book_.records()) << amax;
    EXPECT_EQ(other.Next(0, kDelayed).scale, book_.Next(0, kDelayed).scale) << amax;
  }
}

TEST_F(ScalingBookTest, AnotherBookMakesUpForAStepThatWasNotSettled) {
  Begin(7);
  book_.AddStep(0, kDelayed, 14);
  ScalingBook other(spec_);
  other.Restore(book_.records());
  for (ScalingBook* const book : {&book_, &other}) {
    EXPECT_EQ(book->Next(0, kDelayed).scale, 64);
    book->Settle(book->Offer());
    EXPECT_EQ(book->Present(0, kDelayed).amax, 14);
    EXPECT_EQ(book->Next(0, kDelayed).scale, 32);
  }
  EXPECT_EQ(other.records(), book_.records());
}

TEST_F(ScalingBookTest, RecordsOfAnotherHistoryLengthAreLeftOut) {
  Begin(7);
  std::vector<ScalingBook::Record> records = book_.records();
  ASSERT_EQ(records.size(), 2u);
  records[1].history->amaxes.push_back(1);
  records[1].amax = 100;
  book_.Restore(records);
  EXPECT_EQ(book_.Present(0, kDelayed).amax, 7);
}

}  // namespace
}  // namespace paramshard::server
