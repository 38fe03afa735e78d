// Trainers that detach.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/models/staged_import.h"
#include "tests/server/models/model_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DetachTest : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    Attach();
  }
  // The rank hears that it may go, and its process goes.
  void ExpectGoes(int rank) {
    const EpochEndInfo* const ended = trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(ended->why.message(), HasSubstr(absl::StrCat("rank ", rank, ": process ")));
    trainer(rank).Leave(absl::AbortedError("its process has gone"));
  }
};

TEST_F(DetachTest, WhatAllHaveSentIsCarriedOutForTheOthers) {
  for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  ASSERT_TRUE(trainer(0).AwaitReady(0, 1));
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_TRUE(model_->trainers().activity().running);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 1));
  EXPECT_TRUE(trainer(1).HoldsPlanes(kMx, 0));
  // The slot of rank 0 counts as released.
  trainer(1).Release(0, 1);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 2));
  EXPECT_TRUE(trainer(1).HoldsPlanes(kW, 0));
}

TEST_F(DetachTest, ACommitThatAllSendIsAnsweredBeforeItsSenderGoes) {
  trainer(0).FillGradients(0, kW, 1.0f);
  trainer(0).Push(kW, 0);
  trainer(0).Commit(1, "last");
  ASSERT_OK(trainer(0).Detach());
  ASSERT_TRUE(AwaitWait("rank 1: commit 1")) << "it is not gone: its commit is not answered";
  trainer(1).FillGradients(0, kW, 1.0f);
  trainer(1).Push(kW, 0);
  trainer(1).Commit(1, "last");
  EXPECT_TRUE(trainer(1).AwaitCommitted(1).has_value());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_EQ(trainer(0).AwaitEnded()->numbers.commit_number, 1);
  EXPECT_EQ(model_->committed().commits.client_state(0), "last");
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
}

TEST_F(DetachTest, ASecondDetachIsRefused) {
  trainer(0).FillGradients(0, kW, 1.0f);
  trainer(0).Push(kW, 0);
  ASSERT_OK(trainer(0).Detach());
  EXPECT_THAT(trainer(0).Detach(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("already detached")));
}

TEST_F(DetachTest, WhatItWillNotSendEndsTheEpoch) {
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_TRUE(model_->trainers().activity().running);
  // Its gathers are its own, and rank 0 is absent from its pushes.
  trainer(1).Gather(kMx, 0);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 1));
  trainer(1).Push(kMx, 0);
  ASSERT_TRUE(trainer(1).AwaitDrained(0, 2));
  trainer(1).Commit(1);
  const EpochEndInfo* const ended = trainer(1).AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->why.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(ended->why.message(), AllOf(HasSubstr("rank 0: process "), HasSubstr("has left")));
  ExpectNextEpochWorks();
  EXPECT_THAT(model_->trainers().activity().last_end, HasSubstr("ABORTED: "));
}

TEST_F(DetachTest, WhatOthersHaveSentThatItHasNotEndsTheEpochToo) {
  trainer(1).Commit(1);
  ASSERT_TRUE(AwaitWait("rank 0: commit 1"));
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  const EpochEndInfo* const ended = trainer(1).AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_THAT(ended->why.message(), HasSubstr("rank 0: process "));
}

TEST_F(DetachTest, TheLastOneEndsTheEpoch) {
  for (const auto& trainer : trainers_) ASSERT_OK(trainer->Detach());
  for (const auto& trainer : trainers_) EXPECT_NE(trainer->AwaitEnded(), nullptr);
  const FakeTrainers next = AttachAll(*model_);
  EXPECT_EQ(model_->trainers().activity().last_end, "all trainers have detached");
}

TEST_F(DetachTest, ItsRankIsFreeForTheNextEpoch) {
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_EQ(model_->trainers().HolderOf(0).session, 0);
  FakeTrainer again(model_.get(), 0);
  ASSERT_OK(again.Attach());
  EXPECT_THAT(model_->Close(absl::NotFoundError("deleted")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")))
      << "who is still there is named";
  ASSERT_OK(trainer(1).Detach());
  FakeTrainer other(model_.get(), 1);
  ASSERT_NE(trainer(1).AwaitEnded(), nullptr);
  ASSERT_OK(other.Attach());
  EXPECT_TRUE(again.AwaitStarted());
  EXPECT_EQ(again.started().epoch, 2);
}

TEST_F(DetachTest, AModelThatAllHaveLeftIsDeletedWithoutTheWorld) {
  world_->cluster().Hang();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_OK(trainer(rank).Detach());
    ASSERT_NE(trainer(rank).AwaitEnded(), nullptr);
  }
  ASSERT_TRUE(model_->trainers().activity().running) << "nobody has ended the epoch";
  EXPECT_OK(model_->Close(absl::NotFoundError("deleted")));
}

TEST_F(ModelTest, AnImportWaitsForTheEndOfAnEpochWithinABound) {
  v1::ModelSpec spec = TestSpec();
  spec.mutable_step_timeout()->set_nanos(50'000'000);
  Open(spec);
  Attach();
  world_->cluster().Hang();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_OK(trainer(rank).Detach());
    ASSERT_NE(trainer(rank).AwaitEnded(), nullptr);
  }
  ASSERT_OK_AND_ASSIGN(StagedImport staged, StagedImport::Begin(model_));
  EXPECT_THAT(staged.Apply({}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("still runs at other daemons")));
}

TEST_F(DetachTest, ADeathBeforeItMayGoIsADeath) {
  trainer(0).Commit(1);
  ASSERT_OK(trainer(0).Detach());
  trainer(0).Leave();
  ExpectEnded(absl::StatusCode::kAborted, HasSubstr("rank 0: the trainer has gone"));
}

TEST_F(DetachTest, FewerCommandsThanItHasSentAreRefused) {
  trainer(0).Gather(kMx, 0);
  ASSERT_TRUE(trainer(0).AwaitDaemonAsleep());
  EXPECT_THAT(model_->trainers().Detach(trainer(0).session(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0: want at least 1 commands, got 0")));
}

TEST_F(DetachTest, WhoWaitsForAnEpochGoesAtOnce) {
  trainers_.clear();
  FakeTrainer waiting(model_.get(), 0);
  ASSERT_OK(waiting.Attach());
  ASSERT_OK(waiting.Detach());
  EXPECT_NE(waiting.AwaitEnded(), nullptr);
  ExpectNextEpochWorks();
}

// --- Trainers that are given up while they wait ---

TEST_F(ModelTest, WhoIsGivenUpWhileWaitingLeaves) {
  FakeTrainer waiting(model_.get(), 0);
  ASSERT_OK(waiting.Attach());
  EXPECT_TRUE(model_->trainers().LeaveIfWaiting(waiting.session(), absl::DeadlineExceededError("rank 1 did not come")));
  const EpochEndInfo* ended = waiting.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->why.message(), "rank 1 did not come");
  EXPECT_FALSE(model_->trainers().LeaveIfWaiting(waiting.session(), absl::DeadlineExceededError("again")));
}

TEST_F(ModelTest, WhoseEpochHasBegunIsNotGivenUp) {
  Attach();
  EXPECT_FALSE(
      model_->trainers().LeaveIfWaiting(trainer(0).session(), absl::DeadlineExceededError("rank 1 did not come")));
  EXPECT_TRUE(model_->trainers().activity().running);
}

}  // namespace
}  // namespace paramshard::server
