// Every row of the table of what a new server finds and then does.
#include "server/journal/recovery.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "tests/server/journal/training.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The daemon that is not node 0.
JournalIdentity OnNode1(JournalIdentity identity) {
  identity.node = 1;
  identity.device_counts = {1, static_cast<int32_t>(identity.ranks.size())};
  for (JournalRank& rank : identity.ranks) ++rank.rank;
  return identity;
}

class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() : RecoveryTest(SmallIdentity()) {}
  explicit RecoveryTest(const JournalIdentity& identity) : training_(identity), buffer_(identity) {}

  void Create() { ASSERT_OK_AND_ASSIGN(journal_, Journal::Create(buffer_.bytes(), training_.identity())); }
  // Usable, behind the first commit of its first epoch.
  void Begin() {
    Create();
    ASSERT_OK(journal_->SetUsable(training_.epoch(), training_.numbers()));
    training_.BeginEpoch(1);
    ASSERT_OK(journal_->BeginEpoch(1, training_.epoch().history));
    Prepare();
    Decide();
    training_.Answer();
    ASSERT_OK(journal_->Answer(training_.Answered()));
  }
  int64_t next() const { return training_.numbers().commit_number + 1; }
  void Prepare() { ASSERT_OK(journal_->Prepare(training_.Prepared(next()))); }
  void Decide() { ASSERT_OK(journal_->Decide(training_.Decided(next()))); }
  // All of a step on a rank.
  void Apply(int rank) {
    for (const Training::Band& band : training_.Bands(rank)) {
      journal_->MarkBegun(rank, band.lane, band.count);
      journal_->MarkDone(rank, band.lane, band.count);
    }
  }
  RecoveryPlan Plan() {
    absl::StatusOr<RecoveryPlan> plan = PlanRecovery(buffer_.bytes());
    EXPECT_OK(plan);
    return plan.ok() ? *std::move(plan) : RecoveryPlan();
  }

  Training training_;
  JournalBuffer buffer_;
  std::unique_ptr<Journal> journal_;
};

class Node1RecoveryTest : public RecoveryTest {
 protected:
  Node1RecoveryTest() : RecoveryTest(OnNode1(SmallIdentity())) {}
};

TEST_F(RecoveryTest, MemoryInWhichNothingWasWrittenIsNoJournal) {
  EXPECT_EQ(Plan(), RecoveryPlan());
  EXPECT_EQ(Plan().action, RecoveryAction::kNotBegun);
  EXPECT_THAT(Journal::Adopt(buffer_.bytes()), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(RecoveryTest, AModelThatWasBeingMadeIsDropped) {
  Create();
  EXPECT_EQ(Plan().action, RecoveryAction::kDrop);
  EXPECT_EQ(Plan().identity.has_value(), false);
}

TEST_F(RecoveryTest, AChangeFromWhatIsStillThereIsDoneAgain) {
  for (const ChangeSource::Kind kind : {ChangeSource::Kind::kFiles, ChangeSource::Kind::kCheckpoint}) {
    const bool keeps = kind == ChangeSource::Kind::kFiles;
    buffer_ = JournalBuffer(SmallIdentity());
    training_ = Training(SmallIdentity());
    Begin();
    const ChangeSource source{.kind = kind, .text = "a folder", .convert_moments = !keeps};
    ASSERT_OK(journal_->BeginChange(source));
    const RecoveryPlan plan = Plan();
    EXPECT_EQ(plan.action, RecoveryAction::kRedoChange);
    EXPECT_EQ(plan.change, source);
    EXPECT_EQ(plan.numbers.has_value(), keeps) << "what the files do not have stays";
    if (keeps) {
      EXPECT_EQ(plan.numbers, training_.numbers());
    }
  }
}

TEST_F(RecoveryTest, AnImportFromAClientIsLostWithIt) {
  Begin();
  ASSERT_OK(journal_->BeginChange({.kind = ChangeSource::Kind::kStream, .text = {}}));
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kDataLoss);
  EXPECT_THAT(plan.loss, HasSubstr("import"));
  EXPECT_EQ(plan.identity, training_.identity());
}

TEST_F(RecoveryTest, WhatAReplicaHasNotHealedIsLost) {
  Begin();
  ASSERT_OK(journal_->BeginChange({.kind = ChangeSource::Kind::kReplica, .text = {}}));
  EXPECT_EQ(Plan().action, RecoveryAction::kDataLoss);
  EXPECT_THAT(Plan().loss, HasSubstr("a replica was to heal it"));
}

TEST_F(RecoveryTest, AChangeMayBeBegunAgainFromSomethingElse) {
  Begin();
  ASSERT_OK(journal_->BeginChange({.kind = ChangeSource::Kind::kStream, .text = {}}));
  ASSERT_OK(journal_->BeginChange({.kind = ChangeSource::Kind::kCheckpoint, .text = "c"}));
  EXPECT_EQ(Plan().change->text, "c");
}

TEST_F(RecoveryTest, BetweenTwoCommitsTheAnsweredOneIsServed) {
  Begin();
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kServe);
  EXPECT_EQ(plan.numbers, training_.numbers());
  EXPECT_EQ(plan.epoch, training_.epoch());
  EXPECT_FALSE(plan.prepared.has_value());
}

TEST_F(RecoveryTest, Node0ServesWhatItPreparedAndDidNotDecide) {
  Begin();
  Prepare();
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kServe);
  EXPECT_EQ(plan.numbers, training_.numbers());
  EXPECT_EQ(plan.prepared, training_.Prepared(2));
}

TEST_F(Node1RecoveryTest, AnotherNodeAsksNode0) {
  Begin();
  Prepare();
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kQueryNode0);
  EXPECT_EQ(plan.numbers, training_.numbers());
  EXPECT_EQ(plan.prepared, training_.Prepared(2));
  EXPECT_EQ(plan.epoch->epoch, 1);
}

TEST_F(Node1RecoveryTest, WhatNode0AnswersIsDecidedAsBeforeTheDeath) {
  Begin();
  Prepare();
  ASSERT_OK_AND_ASSIGN(journal_, Journal::Adopt(buffer_.bytes()));
  Decide();
  EXPECT_EQ(Plan().action, RecoveryAction::kRedoApply);
}

TEST_F(Node1RecoveryTest, ACommitThatWasGivenUpAsksNobody) {
  Begin();
  Prepare();
  ASSERT_OK(journal_->Withdraw());
  EXPECT_EQ(Plan().action, RecoveryAction::kServe);
  ASSERT_OK(journal_->BeginEpoch(2, training_.epoch().history));
  EXPECT_EQ(Plan().action, RecoveryAction::kServe);
}

// Another daemon may have prepared that commit, and ask for it.
TEST_F(RecoveryTest, TheLastDecisionIsKnownAfterItsAnswer) {
  Begin();
  const LastDecision first{training_.epoch().history, 1, training_.Decided(1)};
  EXPECT_EQ(Plan().last_decision, first);
  training_.BeginEpoch(2);
  ASSERT_OK(journal_->BeginEpoch(2, training_.epoch().history));
  Prepare();
  EXPECT_EQ(Plan().last_decision, first);
  Decide();
  EXPECT_EQ(Plan().last_decision, (LastDecision{training_.epoch().history, 2, training_.Decided(2)}));
}

TEST_F(RecoveryTest, ASkipIsAnswered) {
  Begin();
  Prepare();
  Decide();
  training_.Answer();
  ASSERT_OK(journal_->Answer(training_.Answered()));
  Prepare();
  Decide();  // the third one is skipped
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kAnswerSkip);
  EXPECT_EQ(plan.decided, training_.Decided(3));
  EXPECT_EQ(plan.prepared->client_states, training_.Prepared(3).client_states);
  EXPECT_EQ(plan.prepared->reader_data, training_.Prepared(3).reader_data);
}

TEST_F(RecoveryTest, AnApplyGoesOnBehindWhatIsDone) {
  Begin();
  Prepare();
  Decide();
  EXPECT_THAT(Plan().redo, ElementsAre(RankRedo{.rank = 0, .done = {0, 0}, .next = 0, .forward = false},
                                       RankRedo{.rank = 1, .done = {0, 0}, .next = 0, .forward = false},
                                       RankRedo{.rank = 2, .done = {0, 0}, .next = 0}));
  journal_->MarkDone(0, 0, 1);
  journal_->MarkDone(0, 1, 1);
  journal_->MarkDone(0, 0, 2);
  journal_->MarkBegun(0, 0, 3);
  Apply(1);
  Apply(2);
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kRedoApply);
  EXPECT_EQ(plan.decided, training_.Decided(2));
  EXPECT_THAT(plan.redo, ElementsAre(RankRedo{.rank = 0, .done = {2, 1}, .next = 3, .torn = 1, .forward = false},
                                     RankRedo{.rank = 1, .done = {1, 1}, .next = 2, .complete = true, .forward = false},
                                     RankRedo{.rank = 2, .done = {1, 0}, .next = 1, .complete = true}));
}

// The second lane may be one band ahead, and one behind the band that the first one waits for.
TEST_F(RecoveryTest, LanesMayBeAsFarApartAsStepsLetThem) {
  struct Case {
    int done0;
    int done1;
    int next;
  };
  for (const Case& c : {Case{1, 0, 1}, Case{2, 0, 1}, Case{0, 1, 0}, Case{1, 2, 2}, Case{3, 1, 3}}) {
    buffer_ = JournalBuffer(SmallIdentity());
    training_ = Training(SmallIdentity());
    Begin();
    Prepare();
    Decide();
    journal_->MarkDone(0, 0, c.done0);
    journal_->MarkDone(0, 1, c.done1);
    const RecoveryPlan plan = Plan();
    EXPECT_EQ(plan.action, RecoveryAction::kRedoApply) << c.done0 << " " << c.done1;
    EXPECT_EQ(plan.redo.at(0).next, c.next);
  }
}

TEST_F(RecoveryTest, MarksThatNoStepLeavesAreLost) {
  for (const auto& [done0, done1] : std::vector<std::pair<int, int>>{{3, 0}, {0, 2}}) {
    buffer_ = JournalBuffer(SmallIdentity());
    training_ = Training(SmallIdentity());
    Begin();
    Prepare();
    Decide();
    journal_->MarkDone(0, 0, done0);
    journal_->MarkDone(0, 1, done1);
    const RecoveryPlan plan = Plan();
    EXPECT_EQ(plan.action, RecoveryAction::kDataLoss) << done0 << " " << done1;
    EXPECT_THAT(plan.loss, AllOf(HasSubstr("rank 0"), HasSubstr("order")));
  }
}

TEST_F(RecoveryTest, MarksOfMoreBandsThanThereAreAreLost) {
  Begin();
  Prepare();
  Decide();
  journal_->MarkDone(1, 0, 2);
  EXPECT_EQ(Plan().action, RecoveryAction::kDataLoss);
}

TEST_F(RecoveryTest, AStepInPlaceThatWasCutOffIsLostAndNamed) {
  Begin();
  Prepare();
  Decide();
  journal_->MarkBegun(2, 0, 1);
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kDataLoss);
  EXPECT_THAT(plan.loss, AllOf(HasSubstr("rank 2"), HasSubstr("2 extents"), HasSubstr("rows 1280 to 1920")));
  EXPECT_EQ(plan.numbers, training_.numbers());
}

TEST_F(RecoveryTest, AStepInPlaceThatWasNotBegunIsDone) {
  Begin();
  Prepare();
  Decide();
  EXPECT_FALSE(Plan().redo.at(2).complete);
  Apply(2);
  EXPECT_TRUE(Plan().redo.at(2).complete);
}

TEST_F(RecoveryTest, AnApplyThatIsAllDoneIsStillToBeAnswered) {
  Begin();
  Prepare();
  Decide();
  for (int rank = 0; rank < 3; ++rank) Apply(rank);
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kRedoApply);
  for (const RankRedo& redo : plan.redo) EXPECT_TRUE(redo.complete);
}

// The prepared commit has the next commit's number, but another history.
TEST_F(RecoveryTest, WhatWasPreparedBeforeARestoreIsForgotten) {
  Begin();
  Prepare();
  Decide();
  training_.Answer();
  ASSERT_OK(journal_->Answer(training_.Answered()));
  Prepare();
  Decide();
  ASSERT_OK(journal_->BeginChange({.kind = ChangeSource::Kind::kCheckpoint, .text = "c"}));
  training_.Replace();
  ASSERT_EQ(next(), 3);
  ASSERT_OK(journal_->SetUsable(training_.epoch(), training_.numbers()));
  const RecoveryPlan plan = Plan();
  EXPECT_EQ(plan.action, RecoveryAction::kServe);
  EXPECT_FALSE(plan.prepared.has_value());
  EXPECT_EQ(plan.epoch, training_.epoch());
}

}  // namespace
}  // namespace paramshard::server
