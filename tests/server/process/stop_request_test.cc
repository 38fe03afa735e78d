#include "server/process/stop_request.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/keeper/fake_kept_store.h"

namespace paramshard::server {
namespace {

using testing::HasSubstr;

class StopRequestTest : public testing::Test {
 protected:
  absl::Status answer_ = absl::OkStatus();  // of the keeper
  int restarts_ = 0;
  FakeKeptStore kept_;
  const KeeperServices keeper_{.restart =
                                   [this](const ServerCommandChange&) {
                                     ++restarts_;
                                     return answer_;
                                   },
                               .is_followed = [this] { return restarts_ > 0; },
                               .kept = &kept_};
  StopRequest request_{&keeper_};
};

TEST_F(StopRequestTest, IsMadeOnce) {
  EXPECT_TRUE(request_.Make());
  EXPECT_FALSE(request_.Make());
  request_.Await();
}

TEST_F(StopRequestTest, ModelsStayForTheSameServer) {
  EXPECT_FALSE(request_.models_stay());
  EXPECT_THAT(request_.Reason(/*saves=*/true).ToString(), HasSubstr("saves unsaved commits"));
  EXPECT_EQ(request_.MakeForRestart({}, /*lose_models=*/false), absl::OkStatus());
  request_.Await();
  EXPECT_TRUE(request_.models_stay());
  EXPECT_FALSE(request_.loses_models());
  EXPECT_THAT(request_.Reason(/*saves=*/true).ToString(), HasSubstr("restarting"));
}

TEST_F(StopRequestTest, ModelsDoNotStayForAnotherServerOrIfTheyAreToBeLost) {
  EXPECT_EQ(request_.MakeForRestart({.program = "other"}, /*lose_models=*/false), absl::OkStatus());
  EXPECT_FALSE(request_.models_stay());
  EXPECT_FALSE(request_.loses_models());
  StopRequest losing(&keeper_);
  EXPECT_EQ(losing.MakeForRestart({}, /*lose_models=*/true), absl::OkStatus());
  EXPECT_FALSE(losing.models_stay());
  EXPECT_TRUE(losing.loses_models());
}

TEST_F(StopRequestTest, ARestartThatTheKeeperRejectsChangesNothing) {
  answer_ = absl::FailedPreconditionError("no such program");
  EXPECT_EQ(request_.MakeForRestart({.program = "other"}, /*lose_models=*/false), answer_);
  EXPECT_TRUE(request_.models_stay());
  EXPECT_TRUE(request_.Make());
}

TEST_F(StopRequestTest, ModelsDoNotStayAfterARestartThatTheKeeperMayHaveAccepted) {
  answer_ = absl::DeadlineExceededError("the keeper does not answer");
  EXPECT_EQ(request_.MakeForRestart({.program = "other"}, /*lose_models=*/false), answer_);
  EXPECT_FALSE(request_.models_stay());
}

TEST_F(StopRequestTest, AStopDoesNotBecomeARestart) {
  EXPECT_TRUE(request_.Make());
  EXPECT_TRUE(absl::IsUnavailable(request_.MakeForRestart({}, /*lose_models=*/false)));
  EXPECT_EQ(restarts_, 0);
}

}  // namespace
}  // namespace paramshard::server
