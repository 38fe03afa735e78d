#include "server/world/link_book.h"

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

class LinkBookTest : public ::testing::Test {
 protected:
  void Add(int node, int peer) {
    book_.Add(node,
              {.peer = peer, .address = absl::StrCat("10.9.0.", node), .peer_address = absl::StrCat("10.9.0.", peer)},
              now_);
  }
  // Adds a bad link, leaves out nodes because of it, and returns them.
  std::vector<int> LeaveOut(int node, int peer) {
    Add(node, peer);
    book_.LeaveOut(now_);
    return book_.left_out();
  }
  void Pass(absl::Duration time) { now_ += absl::ToChronoNanoseconds(time); }
  // Returns how long the node stays left out, in units of the first stay.
  int64_t Stay(int node) {
    for (int64_t stays = 0;; ++stays) {
      book_.TryAgain(now_);
      if (!book_.IsLeftOut(node)) return stays;
      Pass(kFirstStay);
    }
  }

  SteadyTime now_ = SteadyNow();
  LinkBook book_{kFirstStay};
};

TEST_F(LinkBookTest, NamesBothEndsOnceTheLowerNodeFirst) {
  Add(2, 1);
  Add(1, 2);
  Add(0, 2);
  EXPECT_THAT(book_.Texts(),
              ElementsAre("node 0 (10.9.0.0) and node 2 (10.9.0.2)", "node 1 (10.9.0.1) and node 2 (10.9.0.2)"));
}

TEST_F(LinkBookTest, AddressesThatANodeMakesUpAreCutAndEscaped) {
  book_.Add(1, {.peer = 2, .address = "a\nb", .peer_address = std::string(100, 'x')}, now_);
  EXPECT_THAT(book_.Texts(), ElementsAre("node 1 (a\\nb) and node 2 (" + std::string(64, 'x') + ")"));
}

TEST_F(LinkBookTest, OneThatIsInnocentAsMoreIsSaidIsLetIn) {
  EXPECT_THAT(LeaveOut(1, 2), ElementsAre(2));
  EXPECT_THAT(LeaveOut(1, 3), ElementsAre(1));
}

TEST_F(LinkBookTest, StaysGrowWhileTheLinkIsCut) {
  std::vector<int64_t> stays;
  for (int i = 0; i < 9; ++i) {
    LeaveOut(1, 2);
    stays.push_back(Stay(2));
  }
  EXPECT_THAT(stays, ElementsAre(1, 2, 4, 8, 16, 32, 64, 64, 64));
  EXPECT_THAT(book_.Texts(), IsEmpty()) << "what is still bad is said again";
}

TEST_F(LinkBookTest, AStayIsTheFirstAgainWhereTheNodeHasWorkedForAsLongAsTheLast) {
  LeaveOut(1, 2);
  Stay(2);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 2);
  book_.Worked({0, 1, 2}, now_);
  Pass(kFirstStay);
  book_.Worked({0, 1, 2}, now_);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 4) << "not for long enough";
  book_.Worked({0, 1, 2}, now_);
  Pass(4 * kFirstStay);
  LeaveOut(1, 2);
  EXPECT_EQ(Stay(2), 1);
}

TEST_F(LinkBookTest, WhoHaveWorkedTogetherReachEachOther) {
  LeaveOut(1, 2);
  book_.Worked({0, 1}, now_);
  EXPECT_THAT(book_.left_out(), ElementsAre(2));
  book_.Worked({0, 1, 2}, now_);
  EXPECT_THAT(book_.left_out(), IsEmpty());
  EXPECT_THAT(book_.Texts(), IsEmpty());
}

TEST_F(LinkBookTest, LinksThatNobodyNamesAreForgottenWhereNobodyIsLeftOutForThem) {
  Add(1, 2);
  Pass(LinkBook::kLinkAge);
  book_.TryAgain(now_);
  EXPECT_THAT(book_.Texts(), ElementsAre("node 1 (10.9.0.1) and node 2 (10.9.0.2)"));
  EXPECT_EQ(book_.NextTry(), std::nullopt);
  Pass(absl::Nanoseconds(1));
  book_.TryAgain(now_);
  EXPECT_THAT(book_.Texts(), IsEmpty());
  EXPECT_THAT(LeaveOut(1, 2), ElementsAre(2));
  EXPECT_EQ(book_.NextTry(), now_ + absl::ToChronoNanoseconds(kFirstStay));
}

TEST_F(LinkBookTest, LinksOfALostNodeAreForgottenAndWhoIsLeftOutForThemComesIn) {
  LeaveOut(1, 2);
  LeaveOut(3, 4);
  EXPECT_THAT(book_.left_out(), ElementsAre(2, 4));
  book_.Forget(1);
  EXPECT_THAT(book_.left_out(), ElementsAre(4));
  book_.Forget(4);
  EXPECT_THAT(book_.left_out(), IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
