// A short campaign; a long one is ./dev campaign.
#include "tests/campaign/campaign.h"

#include <algorithm>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/random_seed.h"
#include "tests/status_matchers.h"
#include "tests/support/environment.h"

namespace paramshard::test {
namespace {

constexpr int64_t kRounds = 8;
// Those in which no client is to notice anything, or each goes on by itself.
const std::set<std::string> kWithoutErrors = {"clock",      "handoff",      "kill-any",   "kill-decided", "kill-server",
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

TEST(AssaultTest, AnUnknownAssaultIsAnError) {
  const CampaignResult result = RunCampaign({.daemon = Program(PARAMSHARDD),
                                             .ctl = Program(PARAMSHARDCTL),
                                             .wall_clock = WALL_CLOCK,
                                             .assaults = {"kindness"}});
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace paramshard::test
