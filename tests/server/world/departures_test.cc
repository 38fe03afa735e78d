#include "server/world/departures.h"

#include <optional>

#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

const absl::Status kLeft = absl::AbortedError("rank 0 has left");
const absl::Status kOtherLeft = absl::AbortedError("rank 2 has left");
constexpr int kRanks = 3;

TEST(DeparturesTest, WithoutAnyTheEpochGoesOn) {
  Departures departures({0, 1});
  departures.AddProgress(0, 5, true);
  departures.AddProgress(1, 5, true);
  EXPECT_EQ(departures.last_command(), std::nullopt);
  EXPECT_OK(departures.End(kRanks));
}

TEST(DeparturesTest, TheFewestCommandsCount) {
  Departures departures({0, 1});
  EXPECT_TRUE(departures.Add(0, 7, kLeft));
  EXPECT_EQ(departures.last_command(), 7);
  EXPECT_FALSE(departures.Add(1, 9, kOtherLeft));
  EXPECT_TRUE(departures.Add(2, 5, kOtherLeft));
  EXPECT_EQ(departures.last_command(), 5);
  EXPECT_FALSE(departures.Add(0, 3, kLeft)) << "a rank leaves once";
}

TEST(DeparturesTest, MoreEndsItWhenEveryNodeHasCarriedOutWhatIsBefore) {
  Departures departures({0, 1});
  departures.Add(0, 7, kLeft);
  departures.AddProgress(0, 7, true);
  EXPECT_OK(departures.End(kRanks)) << "node 1 is at a gather";
  departures.AddProgress(1, 7, false);
  EXPECT_EQ(departures.End(kRanks), kLeft);
}

TEST(DeparturesTest, NobodyWhoWaitsForNothingEndsIt) {
  Departures departures({0, 1});
  departures.Add(0, 7, kLeft);
  departures.AddProgress(0, 7, false);
  departures.AddProgress(1, 7, false);
  EXPECT_OK(departures.End(kRanks));
  departures.AddProgress(1, 7, true);
  EXPECT_EQ(departures.End(kRanks), kLeft);
}

TEST(DeparturesTest, WhoHasCarriedOutMoreThanALaterDepartureSendsHasSentMore) {
  Departures departures({0, 1});
  departures.Add(0, 7, kLeft);
  departures.AddProgress(0, 7, false);
  departures.AddProgress(1, 7, false);
  departures.Add(2, 5, kOtherLeft);
  EXPECT_EQ(departures.End(kRanks), kOtherLeft);
}

TEST(DeparturesTest, TheLastRankEndsIt) {
  Departures departures({0, 1});
  departures.Add(0, 7, kLeft);
  departures.Add(1, 7, kLeft);
  EXPECT_OK(departures.End(kRanks));
  departures.Add(2, 7, kOtherLeft);
  EXPECT_EQ(departures.End(kRanks), kLeft);
}

}  // namespace
}  // namespace paramshard::server
