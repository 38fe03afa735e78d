// Short campaigns with fixed events; long ones are ./dev mirror-campaign.
#include "lab/campaign/mirror_campaign.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/machines.h"
#include "tests/support/environment.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

class MirrorCampaignTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<Machines> machines = Machines::Make(1);
    const absl::Status able = machines.ok() ? machines->CheckLosesAndThrottles() : machines.status();
    if (absl::IsFailedPrecondition(able)) GTEST_SKIP() << able.message();
    ASSERT_OK(able);
  }

  static MirrorCampaignResult Run(const MirrorScript& script) {
    return RunMirrorCampaign({.daemon = Program(PARAMSHARDD),
                              .ctl = Program(PARAMSHARDCTL),
                              .wall_clock = Program(WALL_CLOCK),
                              .worlds = 1,
                              .seed = FirstSeed(1),
                              .script = script});
  }
};

TEST_F(MirrorCampaignTest, EverythingHolds) {
  const MirrorScript script = {.nodes = 2,
                               .mirrors = 2,
                               .events = {"mirror-cut", "kill", "mirror-deaf", "delete", "mirror-slow", "mirror-kill",
                                          "cut", "mirror-loss", "restore", "mirror-mute", "mirror-stop", "half-open"}};
  const MirrorCampaignResult result = Run(script);
  EXPECT_OK(result.status) << result.Table();
  EXPECT_EQ(result.EventCount(), static_cast<int64_t>(script.events.size())) << result.Table();
  EXPECT_GT(result.versions, 0);
  const nlohmann::json json = nlohmann::json::parse(result.Json());
  EXPECT_EQ(json["held"], result.status.ok());
  EXPECT_EQ(json["events"]["kill"]["count"], 1);
}

TEST(MirrorScriptTest, AnUnknownEventIsNamed) {
  const MirrorCampaignResult result = RunMirrorCampaign({.worlds = 1, .script = MirrorScript{.events = {"flood"}}});
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("flood: no event")));
}

}  // namespace
}  // namespace paramshard::test
