// A short campaign; a long one is ./dev campaign.
#include "lab/campaign/campaign.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lab/campaign/deaths.h"
#include "nlohmann/json.hpp"
#include "tests/support/environment.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

constexpr int64_t kRounds = 8;
// Assaults that clients do not notice, or from which they recover by themselves.
const std::set<std::string> kWithoutErrors = {"clock",      "companion",    "kill-any",   "kill-decided", "kill-server",
                                              "kill-start", "kill-trainer", "kill-world", "lose-node"};
const std::set<std::string> kThatKill = {"kill-any",     "kill-decided", "kill-server", "kill-start",
                                         "kill-trainer", "kill-world",   "lose-node"};

class CampaignTest : public testing::TestWithParam<std::string> {};

TEST_P(CampaignTest, EverythingHolds) {
#ifdef PARAMSHARD_SANITIZE
  if (GetParam() == "threads" || GetParam() == "memory") {
    GTEST_SKIP() << "a limit on the address space ends a daemon with sanitizers, which map what they like";
  }
#endif
  const CampaignResult result = RunCampaign({.daemon = Program(PARAMSHARDD),
                                             .ctl = Program(PARAMSHARDCTL),
                                             .wall_clock = WALL_CLOCK,
                                             .assaults = {GetParam()},
                                             .rounds = kRounds,
                                             .seed = FirstSeed(1)});
  EXPECT_OK(result.status) << result.Table();
  EXPECT_EQ(result.rounds, kRounds) << result.Table();
  const nlohmann::json json = nlohmann::json::parse(result.Json());
  EXPECT_EQ(json["assaults"][GetParam()]["rounds"], kRounds);
  EXPECT_EQ(json["held"], result.status.ok());
  if (kWithoutErrors.contains(GetParam())) {
    EXPECT_EQ(json["assaults"][GetParam()]["errors"], 0) << result.Table();
  }
  if (kThatKill.contains(GetParam())) {
    EXPECT_GE(json["assaults"][GetParam()]["kills"], kRounds) << result.Table();
  }
}

INSTANTIATE_TEST_SUITE_P(Assaults, CampaignTest, testing::ValuesIn(AssaultNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(AssaultTest, RoundsRunSideBySideAndKillSeveralTimes) {
  const CampaignResult result = RunCampaign({.daemon = Program(PARAMSHARDD),
                                             .ctl = Program(PARAMSHARDCTL),
                                             .wall_clock = WALL_CLOCK,
                                             .assaults = {"kill-trainer", "kill-start", "clock"},
                                             .rounds = 7,
                                             .at_once = 2,
                                             .kills = 3,
                                             .seed = FirstSeed(1)});
  EXPECT_OK(result.status) << result.Table();
  const nlohmann::json json = nlohmann::json::parse(result.Json());
  EXPECT_EQ(json["assaults"]["kill-trainer"]["kills"], 9);
  EXPECT_EQ(json["assaults"]["kill-start"]["kills"], 6);
  EXPECT_EQ(json["assaults"]["clock"]["rounds"], 2);
}

// In every draw at least one process dies and none dies twice, and the neighbour behind a lost daemon takes part.
TEST(DeathsTest, WhoHealsALostDaemonLives) {
  constexpr int kNodes = 4;
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int draw = 0; draw < 1000; ++draw) {
    const bool node0_heals = draw % 2 == 0;
    const std::vector<Death> deaths =
        DrawDeaths({.nodes = kNodes, .ranks = 8, .replicas = true, .node0_heals = node0_heals}, random);
    ASSERT_FALSE(deaths.empty());
    std::set<std::pair<bool, int>> dead;
    for (const Death& death : deaths) {
      EXPECT_LE(death.count(), 4);
      EXPECT_TRUE(dead.emplace(death.mortal == Mortal::kTrainer, death.number).second) << Describe(deaths);
    }
    for (const Death& death : deaths) {
      if (death.mortal != Mortal::kDaemon) continue;
      EXPECT_FALSE(dead.contains({false, (death.number + 1) % kNodes})) << Describe(deaths);
      EXPECT_TRUE(death.number != 0 || node0_heals) << Describe(deaths);
    }
  }
}

TEST(DeathsTest, NoDaemonOfAShardGroupIsLost) {
  std::mt19937_64 random(FirstSeed(1));
  for (int draw = 0; draw < 1000; ++draw) {
    for (const Death& death : DrawDeaths({.nodes = 2, .ranks = 2, .node0_heals = true}, random)) {
      EXPECT_NE(death.mortal, Mortal::kDaemon);
    }
  }
}

TEST(AssaultTest, AnUnknownAssaultIsAnError) {
  const CampaignResult result = RunCampaign({.daemon = Program(PARAMSHARDD),
                                             .ctl = Program(PARAMSHARDCTL),
                                             .wall_clock = WALL_CLOCK,
                                             .assaults = {"kindness"}});
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace paramshard::test
