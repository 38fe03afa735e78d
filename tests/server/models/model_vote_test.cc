// Commits that are under way when the epoch ends.

#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/model_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class VoteTest : public ModelTest {
 protected:
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
    trainers_.clear();
  }

  // Stops the push thread: to be called in a vote.
  absl::Status Hold() {
    held_.Notify();
    go_on_.WaitForNotification();
    return answer_;
  }
  // Brings a commit to where it is held.
  void CommitUntilHeld() {
    Attach();
    Push(kW, [](int) { return 1.0f; });
    for (const auto& trainer : trainers_) trainer->Commit(1, "state");
    ASSERT_TRUE(held_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  }
  void CommitUntilVote() {
    world_->cluster().BeforeVote([this] { return Hold(); });
    CommitUntilHeld();
  }
  void CommitUntilDecided() {
    world_->cluster().AfterVote([this] { return Hold(); });
    CommitUntilHeld();
  }
  void ExpectApplied() {
    EXPECT_EQ(commit_number(), 1);
    EXPECT_EQ(trainer(0).AwaitEnded()->numbers.commit_number, 1);
    EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
    EXPECT_TRUE(trainer(0).AwaitCommitted(1).has_value()) << "it was answered before the end";
    EXPECT_EQ(model_->committed().commits.client_state(1), "state");
  }
  void ExpectNotApplied() {
    EXPECT_EQ(commit_number(), 0);
    EXPECT_EQ(trainer(0).AwaitEnded()->numbers.commit_number, 0);
    EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1));
    EXPECT_FALSE(trainer(0).AwaitCommitted(1).has_value());
    StateHash(*model_);
  }

  absl::Notification held_, go_on_;
  absl::Status answer_;
};

TEST_F(VoteTest, ADeathAfterTheDecisionDoesNotUndoIt) {
  CommitUntilDecided();
  trainer(1).Leave();
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 1"), HasSubstr("resume from commit 1 (version 1)")));
  ExpectApplied();
}

TEST_F(VoteTest, ADeathBeforeTheDecisionDropsTheCommit) {
  CommitUntilVote();
  trainer(1).Leave();
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 1"), HasSubstr("resume from commit 0 (version 0)")));
  ExpectNotApplied();
}

TEST_F(VoteTest, AVoteThatFailsAppliesNothing) {
  CommitUntilVote();
  answer_ = absl::UnavailableError("node 0 is gone");
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kUnavailable, AllOf(HasSubstr("node 0 is gone"), HasSubstr("resume from commit 0")));
  ExpectNotApplied();
}

TEST_F(VoteTest, ADrainWaitsForTheCommit) {
  CommitUntilVote();
  std::thread drain([this] {
    model_->trainers().Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  });
  FakeTrainer late(model_.get(), 0);
  // Until the drain has begun the rank is held.
  absl::Status refused = late.Attach();
  for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::IsAlreadyExists(refused) && absl::Now() < end;) {
    std::this_thread::yield();
    refused = late.Attach();
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the daemon stops")));
  EXPECT_TRUE(model_->trainers().activity().running);
  go_on_.Notify();
  drain.join();
  ExpectEnded(absl::StatusCode::kUnavailable, AllOf(HasSubstr("the daemon stops"), HasSubstr("resume from commit 1")));
  EXPECT_TRUE(trainer(0).AwaitCommitted(1).has_value());
  EXPECT_FALSE(model_->trainers().activity().running);
}

TEST_F(VoteTest, ADrainGivesUpAtItsDeadline) {
  CommitUntilDecided();
  model_->trainers().Drain(SteadyDeadline(absl::Milliseconds(20)), absl::UnavailableError("the daemon stops"));
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kUnavailable, HasSubstr("the daemon stops"));
  ExpectApplied();
}

TEST_F(ModelTest, ADrainTellsThoseWhoWait) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  model_->trainers().Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  const EpochEndInfo* ended = first.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->why.code(), absl::StatusCode::kUnavailable);
  FakeTrainer second(model_.get(), 1);
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ModelTest, AnIdleModelDrainsAtOnce) {
  model_->trainers().Drain(kNever, absl::UnavailableError("the daemon stops"));
  model_->trainers().Drain(kNever, absl::UnavailableError("again"));
}

}  // namespace
}  // namespace paramshard::server
