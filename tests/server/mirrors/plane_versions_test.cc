#include "server/mirrors/plane_versions.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "tests/server/mirrors/version_of.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// The choice of node 0 for one model.
class VersionChoiceTest : public testing::Test {
 protected:
  int64_t Next(int64_t present, bool is_busy = false) {
    return choice_
        .Next(
            VersionOf(present), [&](const wire::PublishedVersion&) { return is_busy; }, now_)
        .commit_number;
  }
  // Misses what is chosen at this commit, when it has come.
  int64_t Miss(int64_t present) {
    const int64_t chosen = Next(present);
    choice_.OnMissed(VersionOf(chosen), /*timed_out=*/false, VersionOf(chosen), now_);
    return Next(present);
  }
  int64_t TimeOut(int64_t present, absl::Duration waited) {
    const int64_t chosen = Next(present);
    now_ = After(now_, waited);
    choice_.OnMissed(VersionOf(chosen), /*timed_out=*/true, VersionOf(present), now_);
    return Next(present);
  }

  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);

  VersionChoice choice_;
};

TEST_F(VersionChoiceTest, ItIsThePresentVersion) {
  EXPECT_EQ(Next(4), 4);
  EXPECT_EQ(Next(4), 4);
  EXPECT_EQ(Next(9), 9);
}

TEST_F(VersionChoiceTest, EachMissLooksFurtherAhead) {
  EXPECT_EQ(Miss(10), 11);
  EXPECT_EQ(Miss(20), 22);
  EXPECT_EQ(Miss(30), 34);
  for (int i = 0; i < 20; ++i) Miss(40 + 100 * i);
  EXPECT_EQ(Miss(5000), 5064);
}

// Mirrors report the same miss one after the other.
TEST_F(VersionChoiceTest, AMissCountsOnce) {
  const wire::PublishedVersion chosen = VersionOf(Next(10));
  choice_.OnMissed(chosen, false, chosen);
  choice_.OnMissed(chosen, false, chosen);
  EXPECT_EQ(Next(10), 11);
  choice_.OnMissed(chosen, false, chosen);
  EXPECT_EQ(Next(10), 11);
}

// Others would never get what a caller reports as missed again and again.
TEST_F(VersionChoiceTest, AVersionThatIsStillToComeIsNotMissed) {
  EXPECT_EQ(Miss(10), 11);
  for (int i = 0; i < 20; ++i) choice_.OnMissed(VersionOf(11), /*timed_out=*/false, VersionOf(10), now_);
  EXPECT_EQ(Next(10), 11);
  EXPECT_EQ(TimeOut(10, VersionChoice::kLeastWait / 2), 11);
  EXPECT_EQ(Next(11), 11);
  choice_.OnMissed(VersionOf(11), /*timed_out=*/false, VersionOf(12), now_);
  EXPECT_EQ(Next(12), 14);
}

// It is in another history then: the owners of the named version are gone.
TEST_F(VersionChoiceTest, AVersionOfAnEndedHistoryIsMissed) {
  EXPECT_EQ(Miss(10), 11);
  choice_.OnMissed(VersionOf(11), /*timed_out=*/false, VersionOf(3, 'b'), now_);
  EXPECT_EQ(choice_.Next(
                VersionOf(3, 'b'), [](const auto&) { return false; }, now_),
            VersionOf(3, 'b'));
}

TEST_F(VersionChoiceTest, WithoutTrainingItIsThePresentVersionAgain) {
  EXPECT_EQ(Miss(10), 11);
  EXPECT_EQ(TimeOut(10, absl::Seconds(2)), 10);
}

TEST_F(VersionChoiceTest, ASuccessLooksLessFarAhead) {
  Miss(10);
  Miss(20);
  EXPECT_EQ(Miss(30), 34);
  choice_.OnReceived(VersionOf(34));
  choice_.OnReceived(VersionOf(34));
  EXPECT_EQ(Next(40), 42);
  choice_.OnReceived(VersionOf(42));
  EXPECT_EQ(Next(50), 51);
  choice_.OnReceived(VersionOf(51));
  EXPECT_EQ(Next(60), 61);
}

TEST_F(VersionChoiceTest, AnOlderImageIsSharedWhileThereIsNoRoomForAnotherOne) {
  EXPECT_EQ(Next(4), 4);
  EXPECT_EQ(Next(9, /*is_busy=*/true), 4);
  EXPECT_EQ(Next(9), 9);
}

TEST_F(VersionChoiceTest, AnotherHistoryIsANewVersion) {
  Miss(10);
  EXPECT_EQ(choice_.Next(VersionOf(3, 'b'), [](const auto&) { return true; }), VersionOf(3, 'b'));
}

TEST(PlaneVersionsTest, AVersionArrivesAsItWas) {
  const wire::PublishedVersion version = VersionOf(7);
  EXPECT_THAT(FromProto(ToProto(version)), IsOkAndHolds(version));
}

TEST(PlaneVersionsTest, ADamagedVersionIsRefused) {
  v1::PlaneVersion version = ToProto(VersionOf(7));
  version.set_history_id("x");
  EXPECT_THAT(FromProto(version), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a history of 1 bytes")));
  version = ToProto(VersionOf(7));
  version.set_commit_number(-1);
  EXPECT_THAT(FromProto(version), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("commit -1")));
}

}  // namespace
}  // namespace paramshard::server
