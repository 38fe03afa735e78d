// The rank that alone is waited for.

#include <vector>

#include "gtest/gtest.h"
#include "tests/server/training/sequence_fixture.h"

namespace paramshard::server {
namespace {

using Work = Sequence::Work;

class LateRanksTest : public SequenceTest {
 protected:
  // The late ones; -1 where there are several.
  int Late() const {
    std::vector<char> late(kRanks, true);
    sequence_->FindLateRanks(late);
    if (late[0] && late[1]) return -1;
    return late[0] ? 4 : late[1] ? 5 : 0;
  }
};

TEST_F(LateRanksTest, NobodyIsLateWhereNobodyWaits) {
  EXPECT_EQ(Late(), 0);
  SubmitAll(GatherCommand(1, kA, 0));
  EXPECT_EQ(Late(), 0);
  RunGathers();
  EXPECT_EQ(Late(), 0);
}

TEST_F(LateRanksTest, WhoHasNotSentWhatTheOthersHave) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  EXPECT_EQ(Late(), 0) << "a gather is its rank's own";
  EXPECT_OK(Submit(0, PushCommand(2, kB, 0)));
  EXPECT_EQ(Late(), 5);
  EXPECT_OK(Submit(1, PushCommand(1, kB, 0)));
  EXPECT_EQ(Late(), 0) << "both have still to fill their slots";
}

TEST_F(LateRanksTest, WhoHasNotCommittedAsTheOthersHave) {
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  EXPECT_EQ(Late(), 4);
  EXPECT_OK(Submit(0, CommitCommand(1, 1)));
  EXPECT_EQ(Late(), 0);
}

TEST_F(LateRanksTest, WhoDoesNotPushWhatItHasNotPushedBefore) {
  EXPECT_OK(Submit(0, PushCommand(1, kB, 0)));
  words_.Fill(0, 0, 1);
  EXPECT_OK(Submit(0, CommitCommand(2, 1)));
  EXPECT_OK(Submit(1, CommitCommand(1, 1)));
  RunReduces();
  RunCommit();
  EXPECT_OK(Submit(0, PushCommand(3, kB, 0)));
  EXPECT_EQ(Late(), 0);
}

TEST_F(LateRanksTest, WhoHasNotFilledASlotThatTheOthersHave) {
  SubmitAll(PushCommand(1, kB, 0));
  EXPECT_EQ(Late(), 0);
  words_.Fill(1, 0, 1);
  EXPECT_EQ(Late(), 4);
  words_.Fill(0, 0, 1);
  EXPECT_EQ(Late(), 0);
}

TEST_F(LateRanksTest, WhoseTrainerHoldsASlotThatTheSumOfACommitWaitsFor) {
  SubmitAll(GatherCommand(1, kA, 0));
  SubmitAll(CommitCommand(2, 1));
  RunGathers();
  EXPECT_EQ(Late(), 0);
  words_.Release(1, 0, 1);
  EXPECT_EQ(BeginPush(1), Work::kSum);
  EXPECT_EQ(Late(), 0) << "the other one is not through with its sum";
  sequence_->FinishSum(1);
  EXPECT_EQ(Late(), 4);
  words_.Release(0, 0, 1);
  EXPECT_EQ(Late(), 0);
  EXPECT_EQ(BeginPush(0), Work::kSum);
  EXPECT_EQ(Late(), 0);
}

TEST_F(LateRanksTest, NobodyIsLateAfterTheEnd) {
  EXPECT_OK(Submit(0, GatherCommand(1, kA, 0)));
  sequence_->Stop();
  EXPECT_EQ(Late(), 0);
}

TEST(LateRankTest, ARankThatIsAloneKeepsNobodyWaiting) {
  const FakeWords words;
  const ModelSpec spec = Parse(SequenceSpec());
  const Layout layout(spec, 1);
  Sequence sequence({.spec = &spec, .layout = &layout, .ranks = 1}, &words);
  EXPECT_OK(sequence.Submit(0, PushCommand(1, kB, 0), SteadyTime()));
  std::vector<char> late(1, true);
  sequence.FindLateRanks(late);
  EXPECT_FALSE(late[0]);
}

}  // namespace
}  // namespace paramshard::server
