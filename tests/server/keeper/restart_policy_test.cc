#include "server/keeper/restart_policy.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using testing::ElementsAre;
using testing::Eq;
using testing::Optional;

class RestartPolicyTest : public testing::Test {
 protected:
  // One life: ready at once, unless it fails, and ended after a while.
  std::optional<absl::Duration> Live(bool ready, absl::Duration life = absl::ZeroDuration()) {
    policy_.OnStart();
    if (ready) policy_.OnReady(now_);
    now_ = After(now_, life);
    return policy_.OnEnd(now_);
  }

  RestartPolicy policy_{RestartPolicy::Options{}};
  SteadyTime now_;
};

TEST_F(RestartPolicyTest, ThereIsNoPauseAtFirstAndThenTheyDoubleUpToTheLongest) {
  std::vector<double> seconds;
  for (int i = 0; i < 10; ++i) seconds.push_back(absl::ToDoubleSeconds(Live(true).value()));
  EXPECT_THAT(seconds, ElementsAre(0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10));
}

TEST_F(RestartPolicyTest, PausesBeginAnewAfterAServerThatWasReadyForAWhile) {
  for (int i = 0; i < 5; ++i) Live(true);
  EXPECT_THAT(Live(true, absl::Seconds(59)), Optional(absl::Milliseconds(1600)));
  EXPECT_THAT(Live(true, absl::Seconds(60)), Optional(absl::ZeroDuration()));
  EXPECT_THAT(Live(true), Optional(absl::Milliseconds(100)));
}

TEST_F(RestartPolicyTest, TheWhileIsCountedFromBeingReady) {
  Live(true);
  policy_.OnStart();
  now_ = After(now_, absl::Hours(1));
  policy_.OnReady(now_);
  EXPECT_THAT(policy_.OnEnd(now_), Optional(absl::Milliseconds(100)));
}

TEST_F(RestartPolicyTest, SoManyFailedStartsInARowAreTheLast) {
  for (int i = 0; i < 4; ++i) EXPECT_NE(Live(false), std::nullopt) << i;
  EXPECT_THAT(Live(false), Eq(std::nullopt));
}

TEST_F(RestartPolicyTest, AServerThatBecomesReadyIsRestartedHoweverOftenItEnds) {
  for (int i = 0; i < 4; ++i) Live(false);
  for (int i = 0; i < 100; ++i) ASSERT_NE(Live(true), std::nullopt);
  for (int i = 0; i < 4; ++i) EXPECT_NE(Live(false), std::nullopt) << i;
  EXPECT_THAT(Live(false), Eq(std::nullopt));
}

TEST_F(RestartPolicyTest, WhoAsksForAStartGetsAllOfThemAgain) {
  for (int i = 0; i < 5; ++i) Live(false);
  policy_.Reset();
  EXPECT_THAT(Live(false), Optional(absl::ZeroDuration()));
  for (int i = 0; i < 3; ++i) EXPECT_NE(Live(false), std::nullopt) << i;
  EXPECT_THAT(Live(false), Eq(std::nullopt));
}

}  // namespace
}  // namespace paramshard::server
