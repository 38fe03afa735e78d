// Short campaigns with fixed events; long ones are ./dev network-campaign.
#include "lab/campaign/network_campaign.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/machines.h"
#include "tests/support/environment.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

NetworkCampaignOptions Options() {
  return {.daemon = Program(PARAMSHARDD),
          .ctl = Program(PARAMSHARDCTL),
          .wall_clock = Program(WALL_CLOCK),
          .worlds = 1,
          .seed = FirstSeed(1)};
}

struct ScriptCase {
  std::string name;
  NetworkScript script;
};

class MachinesTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<Machines> machines = Machines::Make(1);
    const absl::Status able = machines.ok() ? machines->CheckLosesAndThrottles() : machines.status();
    if (absl::IsFailedPrecondition(able)) GTEST_SKIP() << able.message();
    ASSERT_OK(able);
  }
};

class NetworkCampaignTest : public MachinesTest, public testing::WithParamInterface<ScriptCase> {};

TEST_P(NetworkCampaignTest, EverythingHolds) {
  NetworkCampaignOptions options = Options();
  options.script = GetParam().script;
  const NetworkCampaignResult result = RunNetworkCampaign(options);
  EXPECT_OK(result.status) << result.Table();
  EXPECT_EQ(result.EventCount(), static_cast<int64_t>(GetParam().script.events.size())) << result.Table();
  const nlohmann::json json = nlohmann::json::parse(result.Json());
  EXPECT_EQ(json["worlds"], 1);
  EXPECT_EQ(json["held"], result.status.ok());
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, NetworkCampaignTest,
    testing::Values(ScriptCase{"Replicas",
                               {.nodes = 2,
                                .keeps_decisions = true,
                                .events = {"kill-node0", "cut", "second-node0", "kill-daemon", "loss-10", "usurp",
                                           "clock"}}},
                    ScriptCase{"Shards",
                               {.shape = NetworkShape::kShards,
                                .nodes = 2,
                                .events = {"mute", "kill-server", "loss-30", "rotate", "half-open", "slow", "stop"}}},
                    ScriptCase{"ElasticReplicas",
                               {.shape = NetworkShape::kElastic,
                                .nodes = 3,
                                .keeps_decisions = true,
                                .events = {"away", "cut", "second-node0", "loss-1", "bad-link", "stop"}}}),
    [](const auto& info) { return info.param.name; });

TEST(NetworkScriptTest, AnEventThatItsWorldCannotHaveIsNamed) {
  NetworkCampaignOptions options = Options();
  options.script = NetworkScript{.shape = NetworkShape::kShards, .events = {"cut", "kill-daemon"}};
  EXPECT_THAT(RunNetworkCampaign(options).status,
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("kill-daemon: no event of 2 shards")));
}

// `false` exits with 1, and has no log.
TEST_F(MachinesTest, ADaemonThatDoesNotStartIsNamed) {
  NetworkCampaignOptions options = Options();
  options.daemon = "/bin/false";
  options.script = NetworkScript{.events = {"cut"}};
  EXPECT_THAT(RunNetworkCampaign(options).status,
              StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr("start node 0: paramshardd exited with 1")));
}

}  // namespace
}  // namespace paramshard::test
