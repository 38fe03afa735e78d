// Tests of a person's order which node has the right state: what is healed, what is refused, and when the order ends.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/world/coordinator.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using Fate = NodeState::Fate;

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr int kNodes = 3;
constexpr int64_t kCommit = 7;

// A node's only rank has its number.
ModelReport State(int node, const std::string& history, int64_t commit_number) {
  ModelReport report = MakeReport({node}, commit_number, commit_number, 1, /*shard_size=*/1);
  report.history_id = history;
  report.lineage = "of " + history;
  report.keeps_previous = true;
  report.previous = (node + kNodes - 1) % kNodes;
  return report;
}

ModelReport Lost(int node, const std::string& why) {
  ModelReport report = State(node, "h", kCommit);
  report.lost = absl::DataLossError(why);
  return report;
}

ModelReport Begun(int node) {
  ModelReport report = State(node, absl::StrCat("of node ", node), 0);
  report.lineage = "creation";
  report.untouched = report.fresh = true;
  return report;
}

class HealingOrdersTest : public ::testing::Test {
 protected:
  explicit HealingOrdersTest(QuorumPolicy quorum = {})
      : coordinator_(Coordinator::Options{.nodes = kNodes, .quorum = quorum}) {
    for (int node = 0; node < kNodes; ++node) EXPECT_OK(coordinator_.Join(node, 1, &sinks_[node]));
  }
  void Report(const std::vector<ModelReport>& reports) {
    for (int node = 0; node < kNodes; ++node) coordinator_.Step(node, reports[node]).IgnoreError();
  }
  // States that differ, as trainers were told and have left.
  absl::Status Refused(const std::vector<ModelReport>& reports) {
    Report(reports);
    absl::Status why;
    for (RecordingListener& sink : sinks_) {
      const ReceivedMessage message = sink.Next();
      EXPECT_TRUE(message.refused);
      why = message.why;
    }
    return why;
  }
  ReceivedMessage AwaitStart(const std::vector<int>& nodes = {0, 1, 2}) {
    ReceivedMessage first;
    for (const int node : nodes) {
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_TRUE(message.start) << message.why;
      EXPECT_EQ(message.active, nodes);
      first = message;
    }
    return first;
  }
  void End(int64_t epoch, const std::vector<int>& nodes = {0, 1, 2}) {
    EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::AbortedError("over")}));
    for (const int node : nodes) EXPECT_FALSE(sinks_[node].Next().start);
  }
  void Commit(int64_t epoch, int64_t commit_number, const std::vector<int>& nodes = {0, 1, 2}) {
    for (const int node : nodes) {
      const auto decision = coordinator_.Vote(node, MakeVote(epoch, commit_number, {{node, 0, 0}}), kNow);
      if (node == nodes.back()) EXPECT_OK(decision.status());
    }
  }
  std::vector<Fate> Fates(const HealingAnswer& answer) {
    std::vector<Fate> fates;
    for (const NodeState& node : answer.nodes) fates.push_back(node.fate);
    return fates;
  }

  RecordingListener sinks_[kNodes];
  Coordinator coordinator_;
};

TEST_F(HealingOrdersTest, TrainersReadWhatEachNodeHasAndWhatToDo) {
  EXPECT_THAT(
      Refused({State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)}),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          HasSubstr("got version 7 (commit 7) of history h on node 0 (rank 0) and node 2 (rank 2), version 12 "
                    "(commit 12) of history other on node 1 (rank 1): say which node is right, `paramshardctl heal "
                    "m --from=NODE` at node 0, or import the same into every daemon")));
}

TEST_F(HealingOrdersTest, ALossBesideStatesThatDifferSaysItToo) {
  EXPECT_THAT(Refused({State(0, "h", kCommit), Lost(1, "gone"), State(2, "other", 12)}),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("got none on node 1 (rank 1): gone; there is version 7 (commit 7) of history h"),
                             HasSubstr("version 12 (commit 12) of history other on node 2 (rank 2): say which"))));
}

TEST_F(HealingOrdersTest, AHigherCommitNumberGivesWay) {
  const std::vector<ModelReport> reports = {State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK_AND_ASSIGN(const HealingAnswer answer, coordinator_.OrderHealing("m", 0));
  EXPECT_TRUE(answer.ordered);
  EXPECT_THAT(Fates(answer), ElementsAre(Fate::kGiven, Fate::kGivenUp, Fate::kSame));
  EXPECT_EQ(answer.nodes[1].history_id, "other");
  EXPECT_EQ(answer.nodes[1].commit_number, 12);
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(0));
  Report(reports);
  const ReceivedMessage start = AwaitStart();
  EXPECT_THAT(start.healings, ElementsAre(GivesUp(1, 2, "other", 12))) << "the one that keeps its client states";
  ASSERT_TRUE(start.fork.has_value());
  EXPECT_EQ(start.fork->history_id, "h");
  EXPECT_EQ(start.fork->lineage, "of h");
  EXPECT_EQ(start.fork->commit_number, kCommit);
  EXPECT_EQ(start.history_id.size(), 32u);
  Commit(start.epoch, kCommit + 1);
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt) << "all have one state";
}

TEST_F(HealingOrdersTest, Node0GivesWayToo) {
  const std::vector<ModelReport> reports = {State(0, "h", 12), State(1, "h", kCommit), State(2, "h", 9)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 1).status());
  Report(reports);
  const ReceivedMessage start = AwaitStart();
  EXPECT_THAT(start.healings, ElementsAre(GivesUp(0, 1, "h", 12), GivesUp(2, 1, "h", 9)));
  EXPECT_NE(start.history_id, "h") << "another commit 8 than that of node 0";
  Commit(start.epoch, kCommit + 1);
}

TEST_F(HealingOrdersTest, StatesInDoubtAndValuesOfNode0GiveWayAsWell) {
  ModelReport imported = State(0, "import", 0);
  imported.untouched = true;
  const std::vector<ModelReport> reports = {imported, Lost(1, "commit 8 is in doubt"), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK_AND_ASSIGN(const HealingAnswer answer, coordinator_.OrderHealing("m", 2));
  EXPECT_THAT(Fates(answer), ElementsAre(Fate::kGivenUp, Fate::kNone, Fate::kGiven));
  EXPECT_EQ(answer.nodes[1].why_none, "commit 8 is in doubt");
  Report(reports);
  EXPECT_THAT(AwaitStart().healings, ElementsAre(GivesUp(0, 2, "import", 0), Healing{.receiver = 1, .donor = 2}));
}

TEST_F(HealingOrdersTest, WhereAllHaveOneStateThereIsNothingToDo) {
  const auto ask = [&] {
    const absl::StatusOr<HealingAnswer> answer = coordinator_.OrderHealing("m", 1);
    EXPECT_OK(answer.status());
    EXPECT_FALSE(answer->ordered);
    EXPECT_THAT(Fates(*answer), ElementsAre(Fate::kSame, Fate::kGiven, Fate::kSame));
    EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt);
  };
  std::vector<ModelReport> reports;
  for (int node = 0; node < kNodes; ++node) reports.push_back(State(node, "h", kCommit));
  for (ModelReport& report : reports) report.attached_ranks.clear();
  Report(reports);
  ask();
  for (int node = 0; node < kNodes; ++node) reports[node].attached_ranks = {node};
  Report(reports);
  EXPECT_THAT(AwaitStart().healings, IsEmpty());
  ask();
  Commit(1, kCommit + 1);
  EXPECT_EQ(coordinator_.OrderHealing("m", 1)->nodes[0].commit_number, kCommit + 1) << "while they train";
}

TEST_F(HealingOrdersTest, WhatCannotBeIsRefused) {
  EXPECT_THAT(coordinator_.OrderHealing("m", 0), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(coordinator_.OrderHealing("m", kNodes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a node in [0, 3), got 3")));
  ModelReport other_spec = State(2, "h", 3);
  other_spec.spec_fingerprint = 2;
  Refused({Begun(0), Lost(1, "gone"), other_spec}).IgnoreError();
  EXPECT_THAT(coordinator_.OrderHealing("m", 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it has initial values")));
  EXPECT_THAT(coordinator_.OrderHealing("m", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("node 1 (rank 1) has no state that all can train on from: gone")));
  EXPECT_THAT(coordinator_.OrderHealing("m", 2), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                          HasSubstr("want the spec of node 2 (rank 2) on all nodes")));
  coordinator_.Leave(2);
  EXPECT_THAT(coordinator_.OrderHealing("m", 2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (rank 2) is away")));
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt);
}

TEST_F(HealingOrdersTest, PartsOfOneModelAreNoReplicas) {
  for (int node = 0; node < kNodes; ++node) {
    ModelReport part = State(node, node == 1 ? "other" : "h", kCommit);
    part.shard_size = kNodes;
    EXPECT_OK(coordinator_.Step(node, part));
  }
  EXPECT_THAT(sinks_[0].Next().why.message(), HasSubstr("they were imported into differently"));
  EXPECT_THAT(coordinator_.OrderHealing("m", 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of which every node holds a replica")));
}

// The epoch ends before any node has the state: node 1 still has its own, and node 2 has not heard of the start.
TEST_F(HealingOrdersTest, HoldsUntilAnEpochHasBegunWithOneState) {
  const std::vector<ModelReport> reports = {State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  Report(reports);
  const ReceivedMessage first = AwaitStart();
  End(first.epoch);
  ModelReport right = State(0, first.history_id, kCommit);
  right.lineage = first.history_id;
  right.untouched = true;
  Report({right, reports[1], reports[2]});
  const ReceivedMessage second = AwaitStart();
  EXPECT_EQ(second.history_id, first.history_id) << "it has begun already";
  EXPECT_FALSE(second.fork.has_value());
  EXPECT_THAT(second.healings, ElementsAre(GivesUp(1, 0, "other", 12), GivesUp(2, 0, "h", kCommit)));
  End(second.epoch);
  ModelReport same[] = {right, right, right};
  for (int node = 0; node < kNodes; ++node) same[node].attached_ranks = {node};
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(0));
  Report({same[0], same[1], same[2]});
  EXPECT_THAT(AwaitStart().healings, IsEmpty());
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt);
}

TEST_F(HealingOrdersTest, IsAboutTheStateThatTheNodeHad) {
  const std::vector<ModelReport> reports = {State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  coordinator_.Leave(1);
  ASSERT_OK(coordinator_.Join(1, 1, &sinks_[1]));
  EXPECT_OK(coordinator_.Step(0, State(0, "h", kCommit)));
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(0));
  EXPECT_OK(coordinator_.Step(0, State(0, "import", kCommit)));
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt);
  EXPECT_THAT(Refused({State(0, "import", kCommit), reports[1], reports[2]}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of history import on node 0")));
}

TEST_F(HealingOrdersTest, EndsWithTheModelOfThatNode) {
  Refused({State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)}).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 1).status());
  EXPECT_OK(coordinator_.Step(0, ModelDeleted{.model = "m"}));
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(1));
  EXPECT_OK(coordinator_.Step(1, ModelDeleted{.model = "m"}));
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt);
}

TEST_F(HealingOrdersTest, TheLastOneCounts) {
  const std::vector<ModelReport> reports = {State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  ASSERT_OK(coordinator_.OrderHealing("m", 1).status());
  Report(reports);
  EXPECT_THAT(AwaitStart().healings, ElementsAre(GivesUp(0, 1, "h", kCommit), GivesUp(2, 1, "h", kCommit)));
}

// It was imported into since, say.
TEST_F(HealingOrdersTest, AStateThatNobodyWasShownIsNotGivenUp) {
  const std::vector<ModelReport> reports = {State(0, "h", kCommit), State(1, "other", 12), State(2, "h", kCommit)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  const std::vector<ModelReport> changed = {reports[0], State(1, "other", 13), reports[2]};
  EXPECT_THAT(Refused(changed), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("(commit 13)")));
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  Report(changed);
  EXPECT_THAT(AwaitStart().healings, ElementsAre(GivesUp(1, 2, "other", 13)));
}

// A node that rolled back to an earlier commit, by an order that node 0 forgot, does not decide about later commits.
TEST_F(HealingOrdersTest, CommitsThatWereGivenUpAreNotSaidToBeUndecided) {
  Report({State(0, "h", kCommit), State(1, "h", kCommit), State(2, "h", kCommit)});
  AwaitStart();
  Commit(1, kCommit + 1);
  End(1);
  const std::vector<ModelReport> reports = {State(0, "import", 3), State(1, "h", kCommit + 1), State(2, "import", 3)};
  Refused(reports).IgnoreError();
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  Report(reports);
  AwaitStart();
  EXPECT_THAT(coordinator_.QueryCommit(1, {.model = "m", .epoch = 1, .commit_number = kCommit + 1}),
              StatusIs(absl::StatusCode::kDataLoss));
}

class FewerHealingOrdersTest : public HealingOrdersTest {
 protected:
  FewerHealingOrdersTest() : HealingOrdersTest({.min_nodes = 2, .timeout = absl::ZeroDuration()}) {
    Report({State(0, "h", kCommit), State(1, "h", kCommit), State(2, "h", kCommit)});
    AwaitStart();
    coordinator_.Leave(2);
    for (const int node : {0, 1}) EXPECT_FALSE(sinks_[node].Next().start);
    for (const int node : {0, 1}) coordinator_.Step(node, State(node, "h", kCommit)).IgnoreError();
    AwaitStart({0, 1});
    EXPECT_OK(coordinator_.Join(2, 1, &sinks_[2]));
    EXPECT_OK(coordinator_.Step(2, other_));
    EXPECT_THAT(sinks_[2].Next().why.message(),
                AllOf(HasSubstr("got commit 12 of history other"), HasSubstr("`paramshardctl heal m --from=NODE`")));
  }

  const ModelReport other_ = State(2, "other", 12);
};

TEST_F(FewerHealingOrdersTest, OneThatIsBackIsHealedWhenTheEpochEndsForIt) {
  ASSERT_OK_AND_ASSIGN(const HealingAnswer answer, coordinator_.OrderHealing("m", 1));
  EXPECT_THAT(Fates(answer), ElementsAre(Fate::kSame, Fate::kGiven, Fate::kGivenUp));
  EXPECT_OK(coordinator_.Step(2, other_));
  EXPECT_TRUE(sinks_[2].empty()) << "its trainer waits";
  Commit(2, kCommit + 1, {0, 1});
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(1));
  for (const int node : {0, 1}) {
    EXPECT_THAT(sinks_[node].Next().why.message(), HasSubstr("node 2 (rank 2) is back"));
    EXPECT_OK(coordinator_.Step(node, State(node, "h", kCommit + 1)));
  }
  EXPECT_THAT(AwaitStart().healings, ElementsAre(GivesUp(2, 0, "other", 12))) << "it keeps its client states";
}

TEST_F(FewerHealingOrdersTest, AnEpochWithoutTheOneThatItIsForLeavesIt) {
  ASSERT_OK(coordinator_.OrderHealing("m", 0).status());
  End(2, {0, 1});
  for (const int node : {0, 1}) coordinator_.Step(node, State(node, "h", kCommit)).IgnoreError();
  const ReceivedMessage start = AwaitStart({0, 1});
  Commit(start.epoch, kCommit + 1, {0, 1});
  EXPECT_THAT(coordinator_.healing_donor("m"), Optional(0));
  coordinator_.Leave(0);
  EXPECT_EQ(coordinator_.healing_donor("m"), std::nullopt) << "node 1 goes on with the same state";
}

TEST_F(FewerHealingOrdersTest, WhatIsTrainedIsNotGivenUpBehindTheBackOfItsTrainers) {
  EXPECT_THAT(coordinator_.OrderHealing("m", 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("end that training first")));
}

TEST_F(FewerHealingOrdersTest, NobodyGoesOnWithoutTheStateThatIsRight) {
  End(2, {0, 1});
  ASSERT_OK(coordinator_.OrderHealing("m", 2).status());
  for (const int node : {0, 1}) coordinator_.Step(node, State(node, "h", kCommit)).IgnoreError();
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  coordinator_.Leave(2);
  ASSERT_OK(coordinator_.Join(2, 1, &sinks_[2]));
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  EXPECT_OK(coordinator_.Step(2, other_));
  EXPECT_THAT(AwaitStart().healings, ElementsAre(GivesUp(0, 2, "h", kCommit), GivesUp(1, 2, "h", kCommit)));
}

// It may have gone on in the history that was given up, as far as the others by now.
TEST_F(FewerHealingOrdersTest, OneThatWasAwayIsNotTakenForOneOfThem) {
  coordinator_.Leave(2);
  End(2, {0, 1});
  const std::vector<ModelReport> reports = {State(0, "h", 9), State(1, "h", kCommit)};
  for (const int node : {0, 1}) coordinator_.Step(node, reports[node]).IgnoreError();
  // The one behind is healed without an order, which would be by node 0.
  EXPECT_THAT(AwaitStart({0, 1}).healings, ElementsAre(Healing{.receiver = 1, .donor = 0}));
  End(3, {0, 1});
  for (const int node : {0, 1}) {
    ModelReport unattached = reports[node];
    unattached.attached_ranks.clear();
    EXPECT_OK(coordinator_.Step(node, unattached));
  }
  ASSERT_OK(coordinator_.OrderHealing("m", 1).status());
  for (const int node : {0, 1}) coordinator_.Step(node, reports[node]).IgnoreError();
  const ReceivedMessage start = AwaitStart({0, 1});
  EXPECT_THAT(start.healings, ElementsAre(GivesUp(0, 1, "h", 9)));
  Commit(4, kCommit + 1, {0, 1});
  ASSERT_OK(coordinator_.Join(2, 1, &sinks_[2]));
  EXPECT_OK(coordinator_.Step(2, State(2, "h", kCommit + 1)));
  EXPECT_THAT(sinks_[2].Next().why.message(),
              AllOf(HasSubstr("up to commit 8"), HasSubstr("got commit 8 of history h:")));
}

}  // namespace
}  // namespace paramshard::server
