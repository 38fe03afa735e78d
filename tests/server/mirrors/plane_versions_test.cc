#include "server/mirrors/plane_versions.h"

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/mirrors/version_of.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// The choice of node 0 for one model.
class VersionChoiceTest : public testing::Test {
 protected:
  int64_t Next(int64_t present, bool is_busy = false) {
    return choice_.Next(VersionOf(present), [&](const wire::PublishedVersion&) { return is_busy; }).commit_number;
  }
  // Misses what is chosen at this commit.
  int64_t Miss(int64_t present, bool timed_out = false) {
    choice_.OnMissed(VersionOf(Next(present)), timed_out);
    return Next(present);
  }

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
  choice_.OnMissed(chosen, false);
  choice_.OnMissed(chosen, false);
  EXPECT_EQ(Next(10), 11);
  choice_.OnMissed(chosen, false);
  EXPECT_EQ(Next(10), 11);
}

TEST_F(VersionChoiceTest, WithoutTrainingItIsThePresentVersionAgain) {
  EXPECT_EQ(Miss(10), 11);
  EXPECT_EQ(Miss(10, /*timed_out=*/true), 10);
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
