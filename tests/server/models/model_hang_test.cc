// Trainers that hang.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Time stands still until a rank is said to wait: no rank is late by the test's own slowness.
class HangTest : public ModelTest {
 protected:
  void SetUp() override {
    Open(TestSpec(), {.step_timeout = kTimeout, .clock = &clock_});
    Attach();
    hash_ = StateHash(*model_);
  }
  void TearDown() override { CloseWorld(); }
  void ExpectNamed(int rank, const std::string& what) {
    ASSERT_TRUE(AwaitWait(absl::StrCat("rank ", rank, ": ", what)));
    // Rings no wakeup: the daemon's threads wake up for the deadline, and look at the clock.
    clock_.Advance(kTimeout);
    ExpectEnded(absl::StatusCode::kDeadlineExceeded,
                AllOf(HasSubstr(absl::StrCat("rank ", rank, " did not reach ", what)), HasSubstr("within 200ms")));
    EXPECT_EQ(StateHash(*model_), hash_);
  }

  static constexpr absl::Duration kTimeout = absl::Milliseconds(200);
  ManualClock clock_;
  std::string hash_;
};

TEST_F(HangTest, ARankThatDoesNotPushIsNamed) {
  trainer(0).Gather(kW, 0);
  trainer(0).Push(kMx, 1);
  ExpectNamed(1, "push mx (command 2 of rank 0), or the commit after it");
}

TEST_F(HangTest, ARankThatDoesNotCommitIsNamed) {
  // A gather that ends after the clock moves would begin the wait anew: a daemon's thread sleeps when it has served it.
  trainer(1).Gather(kMx, 1);
  ASSERT_TRUE(trainer(1).AwaitReady(1, 1));
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDaemonAsleep());
  trainer(0).Commit(1);
  ExpectNamed(1, "commit 1 (command 1 of rank 0)");
}

TEST_F(HangTest, ARankThatDoesNotReleaseASlotIsNamed) {
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Gather(kW, 0);
  }
  trainer(1).Release(0, 1);
  ExpectNamed(0, "release of slot 0 for gather w");
}

TEST_F(HangTest, ARankThatDoesNotFillItsGradientsIsNamed) {
  trainer(0).Push(kW, 0);
  trainer(1).SendPush(kW, 0);
  ExpectNamed(1, "gradients for push w from gradient slot 0 (command 1)");
}

TEST_F(HangTest, ARankThatDoesNotSendACommandByStreamIsNamed) {
  EXPECT_OK(model_->trainers().Submit(trainer(1).session(), DiscardCommand(1)));
  ExpectNamed(0, "discard (command 1 of rank 1)");
}

// A commit is held back until the gather threads sleep: the thread that ends it must see to the wait that begins then.
TEST_F(HangTest, AWaitThatBeginsInTheDaemonEndsToo) {
  absl::Notification go_on;
  world_->cluster().BeforeVote([&go_on] {
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  trainer(0).words().filled(1).value = 2;
  for (const auto& trainer : trainers_) {
    trainer->Commit(1);
    trainer->SendPush(kMx, 1);
  }
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitDaemonAsleep());
  go_on.Notify();
  ExpectNamed(1, "gradients for push mx from gradient slot 1 (command 2)");
}

TEST_F(HangTest, ACommitThatOneRankHoldsUpIsEnded) {
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Commit(1);
  }
  trainer(0).Release(0, 1);
  ExpectNamed(1, "release of slot 0 for commit 1");
}

// No rank waits for another: the deadline does not run.
TEST_F(HangTest, ATrainerThatJustComputesIsNotHanging) {
  for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDaemonAsleep());
  clock_.Advance(absl::Hours(1));
  // The thread that reads this command looks at the clock as well.
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 1);
    ASSERT_TRUE(trainer->AwaitDaemonAsleep());
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(1, 2));
  EXPECT_TRUE(model_->trainers().activity().running);
}

// An hour passes at once, as for a machine that was suspended: a wait counts from its own begin.
TEST_F(HangTest, AnHourThatPassesBeforeAWaitIsNobodysFault) {
  clock_.Advance(absl::Hours(1));
  trainer(0).Push(kMx, 1);
  ASSERT_TRUE(AwaitWait("rank 1: push mx"));
  ASSERT_TRUE(trainer(0).AwaitDaemonAsleep());
  trainer(1).Push(kMx, 1);
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitDrained(1, 1));
}

TEST_F(HangTest, TheModelsOwnStepTimeoutGoesFirst) {
  v1::ModelSpec spec = TestSpec();
  spec.mutable_step_timeout()->set_nanos(50'000'000);
  Open(spec, {.step_timeout = absl::Hours(1), .clock = &clock_});
  Attach();
  trainer(1).Commit(1);
  ASSERT_TRUE(AwaitWait("rank 0: commit 1"));
  clock_.Advance(absl::Milliseconds(50));
  ExpectEnded(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("rank 0"), HasSubstr("within 50ms")));
}

}  // namespace
}  // namespace paramshard::server
