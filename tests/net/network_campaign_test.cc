// A short campaign of the network; a long one is ./dev network-campaign.
#include "tests/net/network_campaign.h"

#include "gtest/gtest.h"
#include "tests/random_seed.h"
#include "tests/status_matchers.h"
#include "tests/support/environment.h"

namespace paramshard::test {
namespace {

TEST(NetworkCampaignTest, EverythingHolds) {
  const NetworkCampaignResult result = RunNetworkCampaign(
      {.daemon = Program(PARAMSHARDD),
       .ctl = Program(PARAMSHARDCTL),
       .wall_clock = WALL_CLOCK,
       .only = {"cut", "mute", "slow", "half-open", "clock", "kill-server", "kill-daemon", "stop", "rotate"},
       .most_nodes = 3,
       .worlds = 2,
       .events = 9,
       .seed = FirstSeed(1)});
  if (absl::IsFailedPrecondition(result.status)) GTEST_SKIP() << result.status.message();
  EXPECT_OK(result.status) << result.Table();
  EXPECT_EQ(result.EventCount(), 18) << result.Table();
}

}  // namespace
}  // namespace paramshard::test
