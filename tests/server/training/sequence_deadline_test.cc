// The rank that is waited for, and since when.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/training/sequence_fixture.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Work = Sequence::Work;

TEST_F(SequenceTest, WhereNobodyWaitsThereIsNoDeadline) {
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  EXPECT_OK(sequence_->Overdue(kNever));
  EXPECT_EQ(sequence_->WaitsFor(0), "");
}

TEST_F(SequenceTest, APushThatDoesNotComeIsOverdue) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, PushCommand(2, kA, 0)));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
  EXPECT_OK(sequence_->Overdue(now_ + kTimeout - std::chrono::nanoseconds(1)));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 5 did not reach push a (command 2 of rank 4), or the commit after it"),
                             HasSubstr("1m"))));
  EXPECT_THAT(sequence_->WaitsFor(0), AllOf(HasSubstr("rank 5"), HasSubstr("push a")));
}

TEST_F(SequenceTest, APushThatCouldNotBeLandedNamesTheMemory) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  sequence_->Look(now_);
  now_ += kLandAfter;
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(0), Work::kLand);
  sequence_->FinishLand(0, false, now_);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 5 did not reach push a (command 1 of rank 4)"),
                             HasSubstr("; the daemon had no memory to copy the push out of its slot"))));
}

TEST_F(SequenceTest, ACommitThatDoesNotComeIsOverdue) {
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 5 did not reach commit 1 (command 1 of rank 4) within 1m")));
  EXPECT_EQ(sequence_->WaitsFor(0), "rank 5: commit 1 (command 1 of rank 4)");
  EXPECT_EQ(sequence_->WaitsFor(1), "");
}

TEST_F(SequenceTest, AnEqualCommandThatDoesNotComeIsOverdue) {
  RestartEqual();
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 5 did not reach gather a forward into slot 0 (command 1) within 1m")));
  EXPECT_THAT(sequence_->WaitsFor(0), AllOf(HasSubstr("rank 5"), HasSubstr("gather a")));
}

TEST_F(SequenceTest, AReleaseThatDoesNotComeIsOverdue) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  now_ += std::chrono::seconds(10);
  RunGathers();
  ReleaseAll(0, 1);
  words_.Release(1, 0, 0);
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout) << "it waits since the slot's gather has ended";
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0"),
                                                                  HasSubstr("gather b"), HasSubstr("command 2"))));
  EXPECT_THAT(sequence_->WaitsFor(1), AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0")));
  EXPECT_EQ(sequence_->WaitsFor(0), "");
  words_.Release(1, 0, 1);
  EXPECT_OK(sequence_->Overdue(now_ + kTimeout));
}

TEST_F(SequenceTest, GradientsThatDoNotComeAreOverdue) {
  SubmitAll(PushCommand(1, kB, 0));
  words_.Fill(1, 0, 1);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 4"), HasSubstr("gradients for push b"), HasSubstr("command 1"))));
  EXPECT_THAT(sequence_->WaitsFor(1), AllOf(HasSubstr("rank 4"), HasSubstr("gradients")));
}

TEST_F(SequenceTest, AHeldUnitMakesACommitOverdue) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  RunGathers();
  words_.Release(0, 0, 1);
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 5"), HasSubstr("release of slot 0"), HasSubstr("commit 1"))));
}

// Its ring is not read while an engine moves its bytes.
TEST_F(SequenceTest, ARankWhoseGatherRunsIsNotBlamedForItsNextCommand) {
  RestartEqual();
  SubmitAll(GatherCommand(1, kA, 0));
  ASSERT_OK(Submit(0, GatherCommand(2, kB, 1)));
  now_ += kTimeout - std::chrono::seconds(1);
  ASSERT_TRUE(sequence_->BeginGather(1, now_).has_value());
  now_ += std::chrono::seconds(1);
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_THAT(sequence_->Overdue(now_ + kTimeout),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("command 2")));
}

// Pieces that have not arrived cannot be released.
TEST_F(SequenceTest, NobodyIsBlamedForASlotThatPiecesStillArriveIn) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  ASSERT_TRUE(sequence_->BeginGather(0, now_).has_value());
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  EXPECT_EQ(sequence_->WaitsFor(0), "");
}

// The other ranks go on: it is not late before they are at the end of the step.
TEST_F(SequenceTest, APushThatIsLandedKeepsNobodyWaitingBeforeTheCommit) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  sequence_->Look(now_);
  now_ += kLandAfter;
  sequence_->Look(now_);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kLand);
    sequence_->FinishLand(rank, true, now_);
  }
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
  EXPECT_EQ(sequence_->WaitsFor(0), "");
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
  EXPECT_EQ(sequence_->WaitsFor(0), "rank 5: commit 1 (command 2 of rank 4)");
}

// Its commands wait for the daemon: no trainer is at fault.
TEST_F(SequenceTest, TheDaemonsOwnWorkIsNoWait) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(PushCommand(2, kA, 0));
  RunSums();
  EXPECT_EQ(BeginPush(0), Work::kVote);
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
}

TEST_F(SequenceTest, TheWaitForAPushBeginsWhenItIsNext) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(PushCommand(2, kA, 0));
  now_ += 10 * kTimeout;
  RunCommit();
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kTimeout);
}

}  // namespace
}  // namespace paramshard::server
