#include "server/world/detached_ranks.h"

#include <optional>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

const absl::Status kLeft = absl::AbortedError("rank 0 has left");
const absl::Status kOtherLeft = absl::AbortedError("rank 2 has left");
constexpr int kRanks = 3;

TEST(DetachedRanksTest, WithoutAnyTheEpochGoesOn) {
  DetachedRanks detached({0, 1});
  detached.AddProgress(0, 5, true);
  detached.AddProgress(1, 5, true);
  EXPECT_EQ(detached.last_command(), std::nullopt);
  EXPECT_OK(detached.End(kRanks));
}

TEST(DetachedRanksTest, TheFewestCommandsCount) {
  DetachedRanks detached({0, 1});
  EXPECT_TRUE(detached.Add(0, 7, kLeft));
  EXPECT_EQ(detached.last_command(), 7);
  EXPECT_FALSE(detached.Add(1, 9, kOtherLeft));
  EXPECT_TRUE(detached.Add(2, 5, kOtherLeft));
  EXPECT_EQ(detached.last_command(), 5);
  EXPECT_FALSE(detached.Add(0, 3, kLeft)) << "a rank leaves once";
}

TEST(DetachedRanksTest, MoreEndsItWhenEveryNodeHasCarriedOutWhatIsBefore) {
  DetachedRanks detached({0, 1});
  detached.Add(0, 7, kLeft);
  detached.AddProgress(0, 7, true);
  EXPECT_OK(detached.End(kRanks)) << "node 1 is at a gather";
  detached.AddProgress(1, 7, false);
  EXPECT_EQ(detached.End(kRanks), kLeft);
}

TEST(DetachedRanksTest, NobodyWhoWaitsForNothingEndsIt) {
  DetachedRanks detached({0, 1});
  detached.Add(0, 7, kLeft);
  detached.AddProgress(0, 7, false);
  detached.AddProgress(1, 7, false);
  EXPECT_OK(detached.End(kRanks));
  detached.AddProgress(1, 7, true);
  EXPECT_EQ(detached.End(kRanks), kLeft);
}

TEST(DetachedRanksTest, WhoHasCarriedOutMoreThanALaterDepartureSendsHasSentMore) {
  DetachedRanks detached({0, 1});
  detached.Add(0, 7, kLeft);
  detached.AddProgress(0, 7, false);
  detached.AddProgress(1, 7, false);
  detached.Add(2, 5, kOtherLeft);
  EXPECT_EQ(detached.End(kRanks), kOtherLeft);
}

TEST(DetachedRanksTest, TheLastRankEndsIt) {
  DetachedRanks detached({0, 1});
  detached.Add(0, 7, kLeft);
  detached.Add(1, 7, kLeft);
  EXPECT_OK(detached.End(kRanks));
  detached.Add(2, 7, kOtherLeft);
  EXPECT_EQ(detached.End(kRanks), kLeft);
}

}  // namespace
}  // namespace paramshard::server
