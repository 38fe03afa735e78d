// Order of commands: what may run when, gathers, pushes, and after the stop.

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/training/command_text.h"
#include "tests/server/training/sequence_fixture.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

using Verdict = Sequence::Verdict;
using Work = Sequence::Work;

// --- Agreement ---

TEST_F(SequenceTest, ACommandIsAgreedWhenTheLastRankHasSentIt) {
  EXPECT_THAT(Submit(1, GatherCommand(1, kA, 0)), IsOkAndHolds(false));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  EXPECT_EQ(sequence_->BeginGather(1, now_), nullptr);
  EXPECT_THAT(Submit(0, GatherCommand(1, kA, 0)), IsOkAndHolds(true));
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, OneRankMayBeFarAhead) {
  for (int n = 1; n <= 100; ++n) ASSERT_THAT(Submit(0, GatherCommand(n, kA, n % 2)), IsOkAndHolds(false));
  EXPECT_EQ(sequence_->last_command(0), 100);
  EXPECT_EQ(sequence_->last_command(1), 0);
  EXPECT_THAT(Submit(1, GatherCommand(1, kA, 1)), IsOkAndHolds(true));
  EXPECT_EQ(RunGather(0), 1);
  EXPECT_EQ(RunGather(0), 0);
}

TEST_F(SequenceTest, AGapOrARepeatedNumberIsRefused) {
  for (int64_t number : {0, 2, -1}) ExpectInvalid(GatherCommand(number, kA, 0), "want number 1");
  SubmitAll(GatherCommand(1, kA, 0));
  ExpectInvalid(GatherCommand(1, kA, 0), "command of rank 4: want number 2, got 1");
}

TEST_F(SequenceTest, ADifferentUnitNamesBothRanksAndCommands) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_THAT(Submit(1, GatherCommand(1, kB, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("command 1"), HasSubstr("rank 4 sent gather a forward into slot 0"),
                             HasSubstr("rank 5 sent gather b forward into slot 0"))));
}

TEST_F(SequenceTest, ADifferentKindPhaseOrSlotIsAMismatch) {
  const std::vector<std::pair<v1::Command, v1::Command>> pairs = {
      {GatherCommand(1, kA, 0), PushCommand(1, kA, 0)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 1)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 0, v1::PHASE_BACKWARD)},
      {PushCommand(1, kA, 0), PushCommand(1, kA, 1)},
      {PushCommand(1, kA, 0), CommitCommand(1, 1)},
  };
  for (const auto& [first, second] : pairs) {
    Restart(0);
    EXPECT_OK(Submit(1, first));
    EXPECT_THAT(Submit(0, second),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("rank 5 sent ", CommandText(spec_, first))),
                               HasSubstr(absl::StrCat("rank 4 sent ", CommandText(spec_, second))))));
  }
}

TEST_F(SequenceTest, DifferentHyperparametersAreAMismatchThatShowsThem) {
  v1::Command other = CommitCommand(1, 1);
  other.mutable_commit()->mutable_groups(0)->set_learning_rate(0.25f);
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_THAT(Submit(1, other), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("learning_rate 0.25")));
}

TEST_F(SequenceTest, DifferentClippingIsAMismatch) {
  v1::Command other = CommitCommand(1, 1);
  other.mutable_commit()->set_max_grad_norm(1);
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_THAT(Submit(1, other), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SequenceTest, ClientStateIsEachRanksOwn) {
  EXPECT_THAT(Submit(0, CommitCommand(1, 1, "zero")), IsOkAndHolds(false));
  EXPECT_THAT(Submit(1, CommitCommand(1, 1, "one")), IsOkAndHolds(true));
  RunSums();
  RunVote();
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_THAT(sequence_->FinishApply(0, now_), Optional(ElementsAre("zero", "one")));
}

TEST_F(SequenceTest, AbsentParametersAreEachRanksOwn) {
  EXPECT_THAT(Submit(1, PushCommand(1, kA, 0, {0, 1})), IsOkAndHolds(false));
  EXPECT_THAT(Submit(0, PushCommand(1, kA, 0, {1})), IsOkAndHolds(true));
  FillAll(0, 1);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::optional<Sequence::PushWork> work = sequence_->BeginPush(rank);
    ASSERT_TRUE(work.has_value());
    EXPECT_EQ(work->work, Work::kReduce);
    EXPECT_THAT(work->absent, ElementsAre(ElementsAre(1), ElementsAre(0, 1)));
    sequence_->FinishReduce(rank, now_);
  }
}

TEST_F(SequenceTest, ARankWithAllGradientsHasAnEmptyListWhereAnotherLacksOne) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(1, PushCommand(1, kA, 0, {1})));
  FillAll(0, 1);
  EXPECT_THAT(sequence_->BeginPush(0)->absent, ElementsAre(IsEmpty(), ElementsAre(1)));
}

TEST_F(SequenceTest, APushWithAllGradientsHasNoLists) {
  SubmitAll(PushCommand(1, kA, 0));
  FillAll(0, 1);
  EXPECT_THAT(sequence_->BeginPush(0)->absent, IsEmpty());
}

TEST_F(SequenceTest, AbsentParametersOfALaterRankAreChecked) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_THAT(Submit(1, PushCommand(1, kA, 0, {2})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("push a: want absent parameters ascending")));
}

TEST_F(SequenceTest, TheChainOfCommandsIsTheSameWhateverIsAbsent) {
  const auto chained = [&](const std::vector<int>& absent) {
    Sequence sequence({.spec = &spec_, .layout = &layout_, .ranks = 1, .chains_commands = true}, &words_);
    EXPECT_OK(sequence.Submit(0, PushCommand(1, kA, 0, absent), now_));
    return sequence.chain().hash();
  };
  EXPECT_EQ(chained({0}), chained({}));
}

// --- Gathers ---

TEST_F(SequenceTest, GathersOfARankBeginInOrder) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  EXPECT_EQ(sequence_->BeginGather(0, now_)->number(), 1);
  EXPECT_EQ(sequence_->BeginGather(0, now_)->number(), 2);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  EXPECT_THAT(RunnableGathers(), ElementsAre(1));
}

TEST_F(SequenceTest, ACommitWaitsForEveryGatherThatWasBegun) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(CommitCommand(3, 1));
  for (int rank = 0; rank < kRanks; ++rank) {
    words_.Release(rank, 0, 1);
    words_.Release(rank, 1, 2);
    ASSERT_NE(sequence_->BeginGather(rank, now_), nullptr);
    ASSERT_NE(sequence_->BeginGather(rank, now_), nullptr);
    sequence_->FinishGather(rank, now_);
  }
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  for (int rank = 0; rank < kRanks; ++rank) sequence_->FinishGather(rank, now_);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, RanksRunTheirGathersIndependently) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  EXPECT_EQ(RunGather(0), 1);
  EXPECT_EQ(RunGather(0), 2);
  EXPECT_EQ(RunGather(1), 1);
}

TEST_F(SequenceTest, AReusedSlotWaitsForEveryRanksRelease) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  RunGathers();
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  words_.Release(0, 0, 1);
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  words_.Release(1, 0, 1);
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
}

// A trainer may release what has not arrived: the pieces on their way would land among those of the next gather.
TEST_F(SequenceTest, AReusedSlotWaitsUntilEveryRankHasFinishedTheGatherBefore) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  words_.Release(0, 0, 1);
  words_.Release(1, 0, 1);
  ASSERT_NE(sequence_->BeginGather(0, now_), nullptr);
  sequence_->FinishGather(0, now_);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  ASSERT_NE(sequence_->BeginGather(1, now_), nullptr);
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  sequence_->FinishGather(1, now_);
  EXPECT_NE(sequence_->BeginGather(0, now_), nullptr);
}

TEST_F(SequenceTest, OtherSlotsDoNotWait) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(GatherCommand(3, kKept, kResidentSlot, v1::PHASE_BOTH));
  for (int n = 1; n <= 3; ++n) RunGathers();
}

TEST_F(SequenceTest, AGatherDoesNotWaitForAPush) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kA, 0));
  RunGathers();
}

TEST_F(SequenceTest, AGatherDoesNotOvertakeOneThatIsNotAgreed) {
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  EXPECT_OK(Submit(0, GatherCommand(2, kB, 1)));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
}

// --- Pushes ---

TEST_F(SequenceTest, APushWaitsUntilEveryRankHasFilledTheSlot) {
  SubmitAll(PushCommand(1, kA, 0));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  words_.Fill(1, 0, 1);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  words_.Fill(0, 0, 1);
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, AFillForAnEarlierPushDoesNotCount) {
  FillAll(0, 1);
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, PushesRunInOrderAndTheSlotIsDrainedWithTheLastRank) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kB, 1));
  FillAll(1, 2);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  FillAll(0, 1);
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_FALSE(sequence_->FinishReduce(0, now_));
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_FALSE(sequence_->FinishReduce(0, now_));
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  EXPECT_TRUE(sequence_->FinishReduce(1, now_));
}

// --- Stop ---

TEST_F(SequenceTest, AfterStopNothingBegins) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  FillAll(0, 2);
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->Stop();
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_EQ(sequence_->BeginGather(0, now_), nullptr);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, WhatHasBegunIsFinishedBeforeItIsQuiet) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  FillAll(0, 2);
  sequence_->BeginGather(0, now_);
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishGather(0, now_);
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishReduce(1, now_);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatIsNotDecidedIsDroppedByStop) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  sequence_->Stop();
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatIsDecidedIsAppliedByAllDespiteStop) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote();
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  RunApplies();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, AVoteUnderWayAtStopDecides) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  EXPECT_EQ(BeginPush(0), Work::kVote);
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishVote(Verdict::kApplies);
  EXPECT_FALSE(sequence_->Quiet());
  RunApplies();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitThatWasGivenUpIsAppliedNowhere) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote(Verdict::kGivenUp);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  sequence_->Stop();
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, StopEndsAllWaiting) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  now_ += 2 * kTimeout;
  sequence_->Stop();
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
}

}  // namespace
}  // namespace paramshard::server
