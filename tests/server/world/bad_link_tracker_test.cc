#include "server/world/bad_link_tracker.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kFirstStay = absl::Seconds(10);

class BadLinkTrackerTest : public ::testing::Test {
 protected:
  void Add(int node, int peer) {
    tracker_.Add(
        node, {.peer = peer, .address = absl::StrCat("10.9.0.", node), .peer_address = absl::StrCat("10.9.0.", peer)},
        now_);
  }
  // Adds a bad link, leaves out nodes because of it, and returns them.
  std::vector<int> LeaveOut(int node, int peer) {
    Add(node, peer);
    tracker_.LeaveOut(now_);
    return tracker_.left_out();
  }
  void Pass(absl::Duration time) { now_ += absl::ToChronoNanoseconds(time); }
  // Returns how long the node stays left out, in units of the first stay.
  int64_t Stay(int node) {
    for (int64_t stays = 0;; ++stays) {
      tracker_.TryAgain(now_);
      if (!tracker_.IsLeftOut(node)) return stays;
      Pass(kFirstStay);
    }
  }

  SteadyTime now_ = SteadyNow();
  BadLinkTracker tracker_{kFirstStay};
};

TEST_F(BadLinkTrackerTest, NamesBothEndsOnceTheLowerNodeFirst) {
  Add(2, 1);
  Add(1, 2);
  Add(0, 2);
  EXPECT_THAT(tracker_.Texts(),
              ElementsAre("node 0 (10.9.0.0) and node 2 (10.9.0.2)", "node 1 (10.9.0.1) and node 2 (10.9.0.2)"));
}

TEST_F(BadLinkTrackerTest, AddressesThatANodeMakesUpAreCutAndEscaped) {
  tracker_.Add(1, {.peer = 2, .address = "a\nb", .peer_address = std::string(100, 'x')}, now_);
  EXPECT_THAT(tracker_.Texts(), ElementsAre("node 1 (a\\nb) and node 2 (" + std::string(64, 'x') + ")"));
}

TEST_F(BadLinkTrackerTest, OneThatIsInnocentAsMoreIsSaidIsLetIn) {
  EXPECT_THAT(LeaveOut(1, 2), ElementsAre(2));
  EXPECT_THAT(LeaveOut(1, 3), ElementsAre(1));
}

TEST_F(BadLinkTrackerTest, StaysGrowWhileTheLinkIsCut) {
  std::vector<int64_t> stays;
  for (int i = 0; i < 9; ++i) {
    LeaveOut(1, 2);
    stays.push_back(Stay(2));
  }
  EXPECT_THAT(stays, ElementsAre(1, 2, 4, 8, 16, 32, 64, 64, 64));
  EXPECT_THAT(tracker_.Texts(), IsEmpty()) << "what is still bad is said again";
}

TEST_F(BadLinkTrackerTest, AStayIsTheFirstAgainWhereTheNodeHasWorkedForAsLongAsTheLast) {
  LeaveOut(1, 2);
  Stay(2);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 2);
  tracker_.Worked({0, 1, 2}, now_);
  Pass(kFirstStay);
  tracker_.Worked({0, 1, 2}, now_);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 4) << "not for long enough";
  tracker_.Worked({0, 1, 2}, now_);
  Pass(4 * kFirstStay);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 1);
}

TEST_F(BadLinkTrackerTest, WhoHaveWorkedTogetherReachEachOther) {
  LeaveOut(1, 2);
  tracker_.Worked({0, 1}, now_);
  EXPECT_THAT(tracker_.left_out(), ElementsAre(2));
  tracker_.Worked({0, 1, 2}, now_);
  EXPECT_THAT(tracker_.left_out(), IsEmpty());
  EXPECT_THAT(tracker_.Texts(), IsEmpty());
}

TEST_F(BadLinkTrackerTest, LinksThatNobodyNamesAreForgottenWhereNobodyIsLeftOutForThem) {
  Add(1, 2);
  Pass(BadLinkTracker::kLinkAge);
  tracker_.TryAgain(now_);
  EXPECT_THAT(tracker_.Texts(), ElementsAre("node 1 (10.9.0.1) and node 2 (10.9.0.2)"));
  EXPECT_EQ(tracker_.NextTry(), std::nullopt);
  Pass(absl::Nanoseconds(1));
  tracker_.TryAgain(now_);
  EXPECT_THAT(tracker_.Texts(), IsEmpty());
  EXPECT_THAT(LeaveOut(1, 2), ElementsAre(2));
  EXPECT_EQ(tracker_.NextTry(), now_ + absl::ToChronoNanoseconds(kFirstStay));
}

TEST_F(BadLinkTrackerTest, LinksOfALostNodeAreForgottenAndWhoIsLeftOutForThemComesIn) {
  LeaveOut(1, 2);
  LeaveOut(3, 4);
  EXPECT_THAT(tracker_.left_out(), ElementsAre(2, 4));
  tracker_.Forget(1);
  EXPECT_THAT(tracker_.left_out(), ElementsAre(4));
  tracker_.Forget(4);
  EXPECT_THAT(tracker_.left_out(), IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
