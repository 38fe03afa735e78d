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

TEST_F(SequenceTest, EqualCommandsWaitUntilTheLastRankHasSentThem) {
  RestartEqual();
  EXPECT_OK(Submit(1, GatherCommand(1, kA, 0)));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  EXPECT_FALSE(sequence_->BeginGather(1, now_).has_value());
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
  EXPECT_EQ(Serve(0), Served(0, 1)) << "one call moves the pieces of all ranks";
  EXPECT_THAT(RunnableGathers(), ElementsAre(1));
}

TEST_F(SequenceTest, OneRankMayBeFarAhead) {
  for (int n = 1; n <= 100; ++n) ASSERT_OK(Submit(0, GatherCommand(n, kA, n % 2)));
  EXPECT_EQ(sequence_->last_command(0), 100);
  EXPECT_EQ(sequence_->last_command(1), 0);
}

TEST_F(SequenceTest, AGapOrARepeatedNumberIsRefused) {
  for (int64_t number : {0, 2, -1}) ExpectInvalid(GatherCommand(number, kA, 0), "want number 1");
  SubmitAll(GatherCommand(1, kA, 0));
  ExpectInvalid(GatherCommand(1, kA, 0), "command of rank 4: want number 2, got 1");
}

TEST_F(SequenceTest, WhereCommandsAreEqualADifferentUnitNamesBothRanksAndWhatToDo) {
  RestartEqual();
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_THAT(
      Submit(1, GatherCommand(1, kB, 0)),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("command 1"), HasSubstr("rank 4 sent gather a forward into slot 0"),
                     HasSubstr("rank 5 sent gather b forward into slot 0"), HasSubstr("run each unit on every rank"))));
}

TEST_F(SequenceTest, WhereCommandsAreEqualADifferentKindPhaseOrSlotIsAMismatch) {
  const std::vector<std::pair<v1::Command, v1::Command>> pairs = {
      {GatherCommand(1, kA, 0), PushCommand(1, kA, 0)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 1)},
      {GatherCommand(1, kA, 0), GatherCommand(1, kA, 0, v1::PHASE_BACKWARD)},
      {PushCommand(1, kA, 0), PushCommand(1, kA, 1)},
      {PushCommand(1, kA, 0), CommitCommand(1, 1)},
  };
  for (const auto& [first, second] : pairs) {
    RestartEqual();
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
  EXPECT_OK(Submit(0, CommitCommand(1, 1, "zero")));
  EXPECT_OK(Submit(1, CommitCommand(1, 1, "one")));
  RunSums();
  RunVote();
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_THAT(sequence_->FinishApply(0, now_), Optional(ElementsAre("zero", "one")));
}

TEST_F(SequenceTest, AbsentParametersAreEachRanksOwn) {
  EXPECT_OK(Submit(1, PushCommand(1, kA, 0, {0, 1})));
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0, {1})));
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
    Sequence sequence({.spec = &spec_, .layout = &layout_, .ranks = 1, .equal_commands = true, .chains_commands = true},
                      &words_);
    EXPECT_OK(sequence.Submit(0, PushCommand(1, kA, 0, absent), now_));
    return sequence.chain().hash();
  };
  EXPECT_EQ(chained({0}), chained({}));
}

// --- Gathers ---

TEST_F(SequenceTest, AGatherIsItsRanksOwnAndServedByAll) {
  EXPECT_OK(Submit(1, GatherCommand(1, kA, 0)));
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
  EXPECT_EQ(Serve(0), Served(1, 1));
  EXPECT_FALSE(sequence_->IsServed(1, 1));
  EXPECT_EQ(Serve(1), Served(1, 1));
  EXPECT_TRUE(sequence_->IsServed(1, 1));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
}

TEST_F(SequenceTest, RanksMayGatherDifferentUnitsIntoDifferentSlots) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_OK(Submit(1, GatherCommand(1, kKept, kResidentSlot, v1::PHASE_BOTH)));
  EXPECT_EQ(Serve(0), Served(0, 1)) << "its own first";
  EXPECT_EQ(Serve(0), Served(1, 1));
  EXPECT_EQ(Serve(1), Served(1, 1));
  EXPECT_EQ(Serve(1), Served(0, 1));
}

TEST_F(SequenceTest, GathersOfARankBeginInOrder) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  for (const Served& served : {Served(0, 1), Served(0, 2), Served(1, 1), Served(1, 2), Served(-1, 0)}) {
    EXPECT_EQ(Serve(0), served);
  }
  EXPECT_THAT(RunnableGathers(), ElementsAre(1));
}

TEST_F(SequenceTest, ACommitWaitsForEveryGatherThatWasBegun) {
  SubmitAll(CommitCommand(1, 1));
  RunCommit();
  EXPECT_OK(Submit(0, GatherCommand(2, kA, 0)));
  EXPECT_OK(Submit(0, CommitCommand(3, 2)));
  EXPECT_OK(Submit(1, CommitCommand(2, 2)));
  words_.Release(0, 0, 2);
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(sequence_->BeginGather(rank, now_).has_value());
  sequence_->FinishGather(0, 0, now_);
  EXPECT_THAT(RunnablePushes(), ElementsAre(1)) << "rank 1 has not moved its pieces";
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  sequence_->FinishGather(1, 0, now_);
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, AReusedSlotWaitsForItsOwnRanksRelease) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 0));
  RunGathers();
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  words_.Release(1, 0, 1);
  EXPECT_EQ(Serve(0), Served(1, 2));
  EXPECT_EQ(Serve(1), Served(1, 2));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  words_.Release(0, 0, 1);
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
}

// A trainer may release what has not arrived: the pieces on their way would land among those of the next gather.
TEST_F(SequenceTest, AReusedSlotWaitsUntilEveryRankHasServedTheGatherBefore) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, GatherCommand(2, kB, 0)));
  words_.Release(0, 0, 1);
  EXPECT_EQ(Serve(0), Served(0, 1));
  EXPECT_FALSE(sequence_->BeginGather(0, now_).has_value());
  ASSERT_TRUE(sequence_->BeginGather(1, now_).has_value());
  EXPECT_FALSE(sequence_->BeginGather(0, now_).has_value());
  EXPECT_TRUE(sequence_->FinishGather(1, 0, now_));
  EXPECT_EQ(Serve(0), Served(0, 2));
}

TEST_F(SequenceTest, OtherSlotsDoNotWait) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(GatherCommand(3, kKept, kResidentSlot, v1::PHASE_BOTH));
  RunGathers();
  EXPECT_TRUE(sequence_->IsServed(0, 3));
}

TEST_F(SequenceTest, AGatherDoesNotWaitForAPush) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kA, 0));
  RunGathers();
}

// --- Pushes ---

TEST_F(SequenceTest, APushWaitsUntilEveryRankHasFilledItsSlot) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(1, GatherCommand(1, kB, 1)));
  EXPECT_OK(Submit(1, PushCommand(2, kA, 1)));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  words_.Fill(1, 1, 2);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  words_.Fill(0, 0, 1);
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
  const std::optional<Sequence::PushWork> work = sequence_->BeginPush(1);
  EXPECT_EQ(work->number, 2);
  EXPECT_THAT(work->slots, ElementsAre(0, 1));
  EXPECT_THAT(work->absent, IsEmpty());
}

TEST_F(SequenceTest, AFillForAnEarlierPushDoesNotCount) {
  FillAll(0, 1);
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kA, 0));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, EqualPushesRunInOrderAndTheSlotIsDrainedWithTheLastRank) {
  RestartEqual();
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(PushCommand(2, kB, 1));
  FillAll(1, 2);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  FillAll(0, 1);
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_THAT(sequence_->FinishReduce(0, now_), IsEmpty());
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_THAT(sequence_->FinishReduce(0, now_), IsEmpty());
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  EXPECT_THAT(Drained(sequence_->FinishReduce(1, now_)), ElementsAre("rank 0 slot 0 push 1", "rank 1 slot 0 push 1"));
}

TEST_F(SequenceTest, PushesOfOtherUnitsOvertakeOneThatWaits) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, PushCommand(2, kB, 1)));
  EXPECT_OK(Submit(1, PushCommand(1, kB, 0)));
  words_.Fill(0, 0, 1);
  words_.Fill(0, 1, 2);
  words_.Fill(1, 0, 1);
  RunReduces();
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  // At the end of its backward.
  EXPECT_OK(Submit(1, PushCommand(2, kA, 1)));
  words_.Fill(1, 1, 2);
  RunReduces();
}

TEST_F(SequenceTest, PushesOfAUnitMatchByTheirOrdinalsAndRunInOrder) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, PushCommand(2, kA, 1)));
  EXPECT_OK(Submit(1, PushCommand(1, kA, 1)));
  words_.Fill(0, 1, 2);
  words_.Fill(1, 1, 1);
  SubmitEnds();
  EXPECT_THAT(RunnablePushes(), IsEmpty()) << "the second push waits for the first";
  words_.Fill(0, 0, 1);
  const std::optional<Sequence::PushWork> first = sequence_->BeginPush(0);
  EXPECT_THAT(first->slots, ElementsAre(0, 1));
  EXPECT_THAT(first->absent, IsEmpty());
  sequence_->FinishReduce(0, now_);
  const std::optional<Sequence::PushWork> second = sequence_->BeginPush(0);
  EXPECT_THAT(second->absent, ElementsAre(IsEmpty(), ElementsAre(0, 1)));
}

TEST_F(SequenceTest, ARankThatComesToItsCommitWithoutAPushIsAbsentFromIt) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0, {1})));
  words_.Fill(0, 0, 1);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
  const std::optional<Sequence::PushWork> work = sequence_->BeginPush(1);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->work, Work::kReduce) << "it owns rows, too";
  EXPECT_EQ(work->number, 1) << "of its commit";
  EXPECT_THAT(work->absent, ElementsAre(ElementsAre(1), ElementsAre(0, 1)));
  EXPECT_THAT(sequence_->FinishReduce(1, now_), IsEmpty());
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_THAT(Drained(sequence_->FinishReduce(0, now_)), ElementsAre("rank 0 slot 0 push 1"));
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  RunCommit();
}

TEST_F(SequenceTest, ARankThatComesToItsDiscardWithoutAPushIsAbsentFromIt) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  SubmitEnds();
  RunReduces();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kDiscard);
    sequence_->FinishDiscard(rank, now_);
  }
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, ARankThatSendsNoMoreIsAbsent) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  sequence_->Close(1);
  RunReduces();
}

TEST_F(SequenceTest, APushThatOthersDoNotMakeIsLanded) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0, {1})));
  words_.Fill(0, 0, 1);
  sequence_->Look(now_);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kLandAfter);
  now_ += kLandAfter;
  sequence_->Look(now_);
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
  const std::optional<Sequence::PushWork> work = sequence_->BeginPush(1);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->work, Work::kLand);
  EXPECT_EQ(work->source, 0);
  EXPECT_THAT(work->slots, ElementsAre(0));
  EXPECT_THAT(work->absent, ElementsAre(ElementsAre(1)));
  EXPECT_THAT(sequence_->FinishLand(1, true, now_), IsEmpty());
  EXPECT_EQ(BeginPush(0), Work::kLand);
  EXPECT_THAT(Drained(sequence_->FinishLand(0, true, now_)), ElementsAre("rank 0 slot 0 push 1"));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_EQ(sequence_->NextDeadline(), kNever) << "nobody waits";
  // The slot is used again meanwhile.
  EXPECT_OK(Submit(0, PushCommand(2, kB, 0)));
  words_.Fill(0, 0, 2);
  EXPECT_OK(Submit(1, PushCommand(1, kA, 1)));
  words_.Fill(1, 1, 1);
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_THAT(sequence_->FinishReduce(0, now_), IsEmpty());
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  EXPECT_THAT(Drained(sequence_->FinishReduce(1, now_)), ElementsAre("rank 1 slot 1 push 1"));
}

// Else a rank's commit would wait behind them, and they for the commit.
TEST_F(SequenceTest, PushesThatAreLandedLeaveRoomForMore) {
  constexpr int64_t kPushes = Sequence::kMostCommands + 100;
  for (int64_t number = 1; number <= kPushes; ++number) {
    ASSERT_OK(Submit(0, PushCommand(number, kA, 0)));
    words_.Fill(0, 0, static_cast<uint32_t>(number));
    sequence_->Look(now_);
    now_ += kLandAfter;
    sequence_->Look(now_);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(BeginPush(rank), Work::kLand);
      sequence_->FinishLand(rank, true, now_);
    }
    ASSERT_EQ(sequence_->Room(0), Sequence::kMostCommands);
  }
  EXPECT_OK(Submit(0, DiscardCommand(kPushes + 1)));
  EXPECT_OK(Submit(1, DiscardCommand(1)));
  EXPECT_EQ(BeginPush(0), Work::kReduce);
}

TEST_F(SequenceTest, PushesThatOthersDoNotMakeAreBounded) {
  for (int64_t number = 1; number <= Sequence::kMostPushes; ++number) {
    ASSERT_OK(Submit(0, PushCommand(number, kA, 0)));
  }
  EXPECT_THAT(Submit(0, PushCommand(Sequence::kMostPushes + 1, kA, 0)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("other ranks have not made")));
  EXPECT_OK(Submit(1, PushCommand(1, kA, 0))) << "one that they have made";
}

TEST_F(SequenceTest, WhatIsNotLandedByAllIsSummedFromItsSlot) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  sequence_->Look(now_);
  now_ += kLandAfter;
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(0), Work::kLand);
  sequence_->FinishLand(0, true, now_);
  EXPECT_OK(Submit(1, PushCommand(1, kA, 0)));
  words_.Fill(1, 0, 1);
  EXPECT_EQ(BeginPush(1), Work::kReduce);
  EXPECT_THAT(Drained(sequence_->FinishReduce(1, now_)), ElementsAre("rank 0 slot 0 push 1"));
  EXPECT_EQ(BeginPush(0), Work::kReduce);
  EXPECT_THAT(Drained(sequence_->FinishReduce(0, now_)), ElementsAre("rank 1 slot 0 push 1"));
}

TEST_F(SequenceTest, WithoutMemoryAPushWaitsInItsSlot) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  sequence_->Look(now_);
  now_ += kLandAfter;
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(0), Work::kLand);
  EXPECT_THAT(sequence_->FinishLand(0, false, now_), IsEmpty());
  sequence_->Look(now_);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_EQ(sequence_->NextDeadline(), now_ + kLandAfter);
  now_ += kLandAfter;
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(0), Work::kLand) << "there may be memory later";
  sequence_->FinishLand(0, false, now_);
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  RunReduces();
}

TEST_F(SequenceTest, APushBehindOneOfItsUnitThatWaitsIsLanded) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, PushCommand(2, kA, 1)));
  words_.Fill(0, 1, 2);
  SubmitEnds();
  sequence_->Look(now_);
  now_ += kLandAfter;
  sequence_->Look(now_);
  const std::optional<Sequence::PushWork> work = sequence_->BeginPush(1);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->work, Work::kLand);
  EXPECT_THAT(work->slots, ElementsAre(1));
}

TEST_F(SequenceTest, APushThatAllMakeIsNotLanded) {
  SubmitAll(PushCommand(1, kA, 0));
  FillAll(0, 1);
  now_ += 2 * kLandAfter;
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(0), Work::kReduce);
}

TEST_F(SequenceTest, AUnitFromWhichRanksWereAbsentIsLandedAtOnce) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  words_.Fill(0, 0, 1);
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  RunReduces();
  RunCommit();
  EXPECT_OK(Submit(0, PushCommand(3, kA, 0)));
  EXPECT_OK(Submit(0, PushCommand(4, kB, 1)));
  words_.Fill(0, 0, 3);
  words_.Fill(0, 1, 4);
  sequence_->Look(now_);
  EXPECT_EQ(BeginPush(1), Work::kLand);
  sequence_->FinishLand(1, true, now_);
  EXPECT_EQ(BeginPush(1), std::nullopt) << "the other unit waits a moment";
}

TEST_F(SequenceTest, APushOfTheNextStepIsNotMatchedWithOneOfThisStep) {
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  EXPECT_OK(Submit(1, PushCommand(2, kA, 0)));
  words_.Fill(0, 0, 1);
  words_.Fill(1, 0, 2);
  RunReduces();
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  RunCommit();
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  EXPECT_OK(Submit(0, PushCommand(3, kA, 0)));
  words_.Fill(0, 0, 3);
  RunReduces();
}

TEST_F(SequenceTest, RanksThatLandTheirRowsAndOthersThatDoNotDisagree) {
  v1::Command landed = PushCommand(1, kA, 0);
  landed.mutable_push()->set_own_slices_landed(true);
  EXPECT_OK(Submit(0, landed));
  EXPECT_THAT(Submit(1, PushCommand(1, kA, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 4 sent push a from gradient slot 0, own rows landed"),
                             HasSubstr("rank 5 sent push a from gradient slot 0"))));
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
  EXPECT_FALSE(sequence_->BeginGather(0, now_).has_value());
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
  sequence_->FinishGather(0, 0, now_);
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
  EXPECT_OK(Submit(0, PushCommand(1, kA, 0)));
  now_ += 2 * kTimeout;
  sequence_->Stop();
  EXPECT_OK(sequence_->Overdue(now_));
  EXPECT_EQ(sequence_->NextDeadline(), kNever);
}

}  // namespace
}  // namespace paramshard::server
