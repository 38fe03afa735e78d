// Commits and discards in the sequence.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/training/sequence_fixture.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Verdict = Sequence::Verdict;
using Work = Sequence::Work;

TEST_F(SequenceTest, ACommitSumsThenVotesOnceThenApplies) {
  SubmitAll(CommitCommand(1, 1));
  EXPECT_NE(sequence_->LastCommitInFlight(), 0);
  EXPECT_EQ(BeginPush(0), Work::kSum);
  EXPECT_EQ(BeginPush(0), std::nullopt);
  sequence_->FinishSum(0);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "the other rank has not summed";
  EXPECT_EQ(BeginPush(1), Work::kSum);
  sequence_->FinishSum(1);
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
  EXPECT_EQ(BeginPush(1), Work::kVote);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "one vote is enough";
  sequence_->FinishVote(Verdict::kApplies);
  RunApplies();
  EXPECT_EQ(sequence_->LastCommitInFlight(), 0);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, AmaxesAreSharedOnceWhenAllRanksHaveApplied) {
  SubmitAll(CommitCommand(1, 1));
  RunSums();
  RunVote(Verdict::kEncodes);
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_EQ(BeginPush(1), std::nullopt) << "rank 0 is still applying";
  EXPECT_FALSE(sequence_->FinishApply(0, now_).has_value());
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
  EXPECT_EQ(BeginPush(1), Work::kShareAmaxes);
  EXPECT_EQ(BeginPush(0), std::nullopt) << "one is enough";
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  sequence_->FinishShareAmaxes();
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, ACommitThatEncodesIsAnsweredWhenAllRanksHave) {
  RunUntilShared();
  SubmitAll(GatherCommand(2, kA, 0));
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  EXPECT_EQ(BeginPush(0), Work::kEncode);
  EXPECT_FALSE(sequence_->FinishEncode(0, now_).has_value());
  EXPECT_EQ(BeginPush(0), std::nullopt);
  EXPECT_THAT(RunnableGathers(), IsEmpty()) << "the planes of rank 1 are of the version before";
  EXPECT_NE(sequence_->LastCommitInFlight(), 0);
  EXPECT_EQ(BeginPush(1), Work::kEncode);
  EXPECT_TRUE(sequence_->FinishEncode(1, now_).has_value());
  EXPECT_EQ(sequence_->LastCommitInFlight(), 0);
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, TheCommitAfterOneThatEncodesBeginsAnew) {
  RunUntilShared();
  SubmitAll(CommitCommand(2, 2));
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kEncode);
    EXPECT_EQ(sequence_->FinishEncode(rank, now_).has_value(), rank == kRanks - 1);
  }
  RunCommit();
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, ADecidedCommitSharesAndEncodesAfterStop) {
  RunUntilShared();
  sequence_->Stop();
  EXPECT_FALSE(sequence_->Quiet());
  EXPECT_EQ(BeginPush(0), Work::kShareAmaxes);
  sequence_->FinishShareAmaxes();
  EXPECT_FALSE(sequence_->Quiet());
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(BeginPush(rank), Work::kEncode);
    EXPECT_EQ(sequence_->FinishEncode(rank, now_).has_value(), rank == kRanks - 1);
  }
  EXPECT_TRUE(sequence_->Quiet());
}

TEST_F(SequenceTest, ACommitIsInFlightWhenAllRanksHaveSentIt) {
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_EQ(sequence_->LastCommitInFlight(), 0);
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  EXPECT_NE(sequence_->LastCommitInFlight(), 0);
}

TEST_F(SequenceTest, ACommitWaitsOnEachRankForItsOwnReleases) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(GatherCommand(2, kB, 1));
  SubmitAll(CommitCommand(3, 1));
  RunGathers();
  ReleaseAll(0, 1);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  words_.Release(1, 1, 2);
  EXPECT_THAT(RunnablePushes(), ElementsAre(1));
}

TEST_F(SequenceTest, ACommitWaitsForEarlierGathersOfItsRank) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  // A trainer that says so although nothing has arrived.
  words_.Release(0, 0, 1);
  EXPECT_THAT(RunnablePushes(), ElementsAre(1));
  EXPECT_EQ(Serve(0), Served(0, 1));
  EXPECT_THAT(RunnablePushes(), ElementsAre(1));
  EXPECT_EQ(Serve(1), Served(0, 1));
  EXPECT_THAT(RunnablePushes(), ElementsAre(0, 1));
}

TEST_F(SequenceTest, ACommitWaitsForEarlierPushes) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  FillAll(0, 1);
  RunReduces();
  RunCommit();
}

TEST_F(SequenceTest, ADiscardComesBehindThePushesBeforeItAndHoldsBackNoGather) {
  SubmitAll(PushCommand(1, kA, 0));
  SubmitAll(DiscardCommand(2));
  SubmitAll(GatherCommand(3, kA, 0));
  SubmitAll(PushCommand(4, kA, 1));
  FillAll(1, 4);
  EXPECT_THAT(RunnablePushes(), IsEmpty()) << "the first push is not filled";
  RunGathers();
  FillAll(0, 1);
  RunReduces();
  EXPECT_EQ(BeginPush(0), Work::kDiscard);
  sequence_->FinishDiscard(0, now_);
  EXPECT_EQ(BeginPush(0), Work::kReduce) << "while the other rank has not discarded";
  EXPECT_EQ(BeginPush(1), Work::kDiscard);
  sequence_->FinishDiscard(1, now_);
  EXPECT_EQ(BeginPush(1), Work::kReduce);
}

TEST_F(SequenceTest, ADiscardThatAnotherRankDoesNotSendNamesBoth) {
  EXPECT_OK(Submit(0, DiscardCommand(1)));
  EXPECT_THAT(Submit(1, CommitCommand(1, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 4 sent discard"), HasSubstr("rank 5 sent commit 1"))));
}

TEST_F(SequenceTest, LaterCommandsWaitForTheCommit) {
  SubmitAll(CommitCommand(1, 1));
  SubmitAll(GatherCommand(2, kA, 0));
  SubmitAll(PushCommand(3, kA, 0));
  FillAll(0, 3);
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  RunSums();
  RunVote();
  EXPECT_EQ(BeginPush(0), Work::kApply);
  EXPECT_FALSE(sequence_->FinishApply(0, now_).has_value());
  EXPECT_THAT(RunnableGathers(), IsEmpty()) << "rank 1 still applies";
  EXPECT_THAT(RunnablePushes(), ElementsAre(1));
  EXPECT_EQ(BeginPush(1), Work::kApply);
  EXPECT_TRUE(sequence_->FinishApply(1, now_).has_value());
  EXPECT_THAT(RunnableGathers(), ElementsAre(0, 1));
  RunReduces();
}

// The rank that is ahead has sent a commit: what it sends then waits, and other ranks go on with their step.
TEST_F(SequenceTest, CommandsWaitForTheCommitThatTheirRankHasSent) {
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_OK(Submit(0, GatherCommand(2, kB, 1)));
  EXPECT_THAT(RunnableGathers(), IsEmpty());
  EXPECT_OK(Submit(1, GatherCommand(1, kA, 0)));
  EXPECT_EQ(Serve(0), Served(1, 1));
  EXPECT_EQ(Serve(0), Served(-1, 0));
  EXPECT_THAT(RunnablePushes(), IsEmpty());
}

TEST_F(SequenceTest, CommitsMayQueue) {
  SubmitAll(CommitCommand(1, 1, "first"));
  SubmitAll(CommitCommand(2, 2, "second"));
  RunCommit();
  RunCommit();
  EXPECT_EQ(sequence_->LastCommitInFlight(), 0);
}

// The protocol's bound: what a commit brings, its client state above all, is held until it is answered.
TEST_F(SequenceTest, AFourthUnansweredCommitIsRefused) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n) ASSERT_OK(Submit(0, CommitCommand(n, n)));
  EXPECT_THAT(Submit(0, CommitCommand(4, 4)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("commit 4 of rank 4"), HasSubstr("at most 3 unanswered commits"))));
}

TEST_F(SequenceTest, AnUnansweredCommitThatIsRepeatedIsNoOtherOne) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n) SubmitAll(CommitCommand(n, n));
  SubmitAll(CommitCommand(4, 3));
}

TEST_F(SequenceTest, AnAnswerMakesRoomForACommit) {
  for (int64_t n = 1; n <= Sequence::kMostCommits; ++n) SubmitAll(CommitCommand(n, n));
  RunCommit();
  SubmitAll(CommitCommand(4, 4));
  EXPECT_THAT(Submit(1, CommitCommand(5, 5)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 5")));
}

TEST_F(SequenceTest, ARankThatIsFarAheadHasNoRoomUntilItsCommandsAreDone) {
  EXPECT_EQ(sequence_->Room(0), Sequence::kMostCommands);
  for (int n = 1; n <= Sequence::kMostCommands; ++n) ASSERT_OK(Submit(0, GatherCommand(n, kA, n % 2)));
  EXPECT_EQ(sequence_->Room(0), 0);
  EXPECT_EQ(sequence_->Room(1), Sequence::kMostCommands);
  RunGathers();
  EXPECT_EQ(sequence_->Room(0), 2) << "one in each slot";
}

TEST_F(SequenceTest, LargeCommandsTakeMoreRoom) {
  int n = 0;
  while (sequence_->Room(0) > 0) {
    v1::Command command = GatherCommand(++n, kA, 0);
    // An unknown field.
    command.GetReflection()->MutableUnknownFields(&command)->AddLengthDelimited(99)->assign(160'000, 'x');
    ASSERT_OK(Submit(0, std::move(command)));
  }
  EXPECT_LT(n, 30);
}

TEST_F(SequenceTest, AbsentParametersTakeRoomUntilTheirPushIsDone) {
  std::vector<v1::ParameterSpec> parameters;
  std::vector<int> absent;
  for (int i = 0; i < 2000; ++i) {
    parameters.push_back(MakeParameter(absl::StrCat(i), {1}));
    absent.push_back(i);
  }
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("wide", std::move(parameters))}));
  const Layout layout(spec, kRanks);
  sequence_ = std::make_unique<Sequence>(Sequence::Options{.spec = &spec, .layout = &layout, .ranks = kRanks}, &words_);
  int n = 0;
  while (sequence_->Room(0) > 0) ASSERT_OK(Submit(0, PushCommand(++n, 0, 0, absent)));
  EXPECT_LT(n, 600);
  ASSERT_OK(Submit(1, PushCommand(1, 0, 0)));
  FillAll(0, 1);
  RunReduces();
  EXPECT_GT(sequence_->Room(0), 0);
}

TEST_F(SequenceTest, ARepeatedCommitNumberHasNothingToDo) {
  Restart(3);
  SubmitAll(CommitCommand(1, 3));
  EXPECT_EQ(sequence_->LastCommitInFlight(), 0);
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  SubmitAll(CommitCommand(2, 4));
  SubmitAll(CommitCommand(3, 4));
  SubmitAll(GatherCommand(4, kA, 0));
  RunCommit();
  EXPECT_THAT(RunnablePushes(), IsEmpty());
  RunGathers();
}

TEST_F(SequenceTest, ARepeatedCommitIsEachRanksOwn) {
  Restart(3);
  EXPECT_OK(Submit(0, CommitCommand(1, 3)));
  EXPECT_OK(Submit(0, CommitCommand(2, 4)));
  EXPECT_OK(Submit(1, CommitCommand(1, 4)));
  RunCommit();
}

TEST_F(SequenceTest, NumbersGoOnPastTheSizeOfAWord) {
  // The words hold the low 32 bits; half of their range is never in flight.
  SubmitAll(GatherCommand(1, kA, 0));
  RunGathers();
  ReleaseAll(0, 0x80000000u + 1);
  SubmitAll(GatherCommand(2, kA, 0));
  EXPECT_THAT(RunnableGathers(), IsEmpty()) << "a release from the past, as the comparison says";
}

}  // namespace
}  // namespace paramshard::server
