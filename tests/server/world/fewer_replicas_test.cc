// Tests of epochs with fewer replicas, and of the return of the others.
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/terms/healing_plan.h"
#include "server/world/coordinator.h"
#include "server/world/quorum.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr int kNodes = 3;
constexpr int kDevices = 2;

// A node's ranks are twice its number, and the next one.
ModelReport Trained(int node, int64_t commit_number, std::optional<int> previous) {
  ModelReport report =
      MakeReport({kDevices * node, kDevices * node + 1}, commit_number, commit_number, 1, /*shard_size=*/kDevices);
  report.history_id = "h";
  report.lineage = "l";
  report.keeps_previous = previous.has_value();
  report.previous = previous;
  return report;
}

class FewerReplicasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator_.Join(node, kDevices, &sinks_[node]));
  }
  // Reports the nodes of one epoch that has made the commit.
  void ReportAll(int64_t commit_number, std::vector<int> nodes = {0, 1, 2}) {
    for (const int node : nodes) {
      EXPECT_OK(coordinator_.Step(node, Trained(node, commit_number, PreviousNode(node, nodes))));
    }
  }
  ReceivedMessage AwaitStart(const std::vector<int>& nodes) {
    ReceivedMessage first;
    for (const int node : nodes) {
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_TRUE(message.start) << message.why;
      EXPECT_EQ(message.active, nodes);
      EXPECT_EQ(message.history_id, "h");
      first = message;
    }
    return first;
  }
  void AwaitEnd(const std::vector<int>& nodes, const std::string& why) {
    for (const int node : nodes) {
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_FALSE(message.start);
      EXPECT_THAT(message.why.message(), HasSubstr(why));
    }
  }
  absl::StatusOr<CommitDecision> Vote(int node, int64_t epoch, int64_t commit_number, double square_sum = 1) {
    CommitVote vote =
        MakeVote(epoch, commit_number, {{kDevices * node, square_sum, 0}, {kDevices * node + 1, square_sum, 0}});
    vote.client_states = {absl::StrCat("of ", node), ""};
    return coordinator_.Vote(node, vote, kNow);
  }
  void Lose(int node) { coordinator_.Leave(node); }
  void Return(int node) { ASSERT_OK(coordinator_.Join(node, kDevices, &sinks_[node])); }
  // Nodes 0 and 1 go on at this commit, in epoch 2.
  void ContinueWithoutTwo(int64_t commit_number) {
    ReportAll(commit_number);
    AwaitStart({0, 1, 2});
    Lose(2);
    AwaitEnd({0, 1}, "node 2 (ranks 4..5) lost");
    ReportAll(commit_number, {0, 1});
    AwaitStart({0, 1});
  }

  RecordingListener sinks_[kNodes];
  Coordinator coordinator_{
      Coordinator::Options{.nodes = kNodes, .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()}}};
};

TEST_F(FewerReplicasTest, TheOthersGoOnWithoutOneThatIsLost) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  EXPECT_THAT(Vote(0, 2, 8).status(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_OK_AND_ASSIGN(const CommitDecision last, Vote(1, 2, 8));
  EXPECT_TRUE(last.apply);
  EXPECT_EQ(last.square_sum, 2) << "that of one replica";
  EXPECT_THAT(last.previous_client_states, Optional(ElementsAre("of 0", "")));
  ASSERT_OK_AND_ASSIGN(const CommitDecision first, Vote(0, 2, 8));
  EXPECT_THAT(first.previous_client_states, Optional(ElementsAre("of 1", ""))) << "the one before it among those";
}

TEST_F(FewerReplicasTest, TheNormIsThatOfTheFirstReplicaThatTakesPart) {
  ReportAll(0);
  AwaitStart({0, 1, 2});
  Vote(2, 1, 1, 100).IgnoreError();
  Vote(1, 1, 1, 10).IgnoreError();
  ASSERT_OK_AND_ASSIGN(const CommitDecision decision, Vote(0, 1, 1, 1));
  EXPECT_EQ(decision.square_sum, 2);
}

TEST_F(FewerReplicasTest, FewerThanThatWait) {
  ReportAll(7);
  AwaitStart({0, 1, 2});
  Lose(2);
  AwaitEnd({0, 1}, "lost");
  Lose(1);
  EXPECT_OK(coordinator_.Step(0, Trained(0, 7, 2)));
  EXPECT_TRUE(sinks_[0].empty());
  Return(1);
  EXPECT_TRUE(sinks_[0].empty()) << "it has not attached";
  EXPECT_OK(coordinator_.Step(1, Trained(1, 7, 0)));
  AwaitStart({0, 1});
}

TEST_F(FewerReplicasTest, GradientsThatAreSummedNeedEveryNode) {
  ReportAll(7);
  AwaitStart({0, 1, 2});
  Lose(2);
  AwaitEnd({0, 1}, "lost");
  for (const int node : {0, 1}) {
    ModelReport report = Trained(node, 7, 0);
    report.needs_every_node = true;
    EXPECT_OK(coordinator_.Step(node, report));
    EXPECT_TRUE(sinks_[node].empty());
  }
}

TEST_F(FewerReplicasTest, AModelThatAllShareNeedsEveryNode) {
  const auto report = [&](int node) {
    ModelReport shared = Trained(node, 7, std::nullopt);
    shared.shard_size = kNodes * kDevices;
    EXPECT_OK(coordinator_.Step(node, shared));
  };
  for (const int node : {0, 1, 2}) report(node);
  AwaitStart({0, 1, 2});
  Lose(2);
  AwaitEnd({0, 1}, "lost");
  for (const int node : {0, 1}) report(node);
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
}

TEST_F(FewerReplicasTest, ANodeWhoseTrainersAreGoneIsWaitedFor) {
  ReportAll(7);
  AwaitStart({0, 1, 2});
  EXPECT_OK(coordinator_.Step(
      0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 4: process 1 has gone")}));
  AwaitEnd({0, 1, 2}, "has gone");
  ReportAll(7, {0, 1});
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
}

TEST_F(FewerReplicasTest, OneThatIsBackEndsTheEpochAtTheNextCommitAndIsHealed) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  ModelReport old = Trained(2, 7, 1);
  old.attached_ranks = {4};
  EXPECT_OK(coordinator_.Step(2, old));
  Vote(0, 2, 8).IgnoreError();
  ASSERT_OK(Vote(1, 2, 8).status());
  EXPECT_TRUE(sinks_[0].empty()) << "one of its trainers is not there yet";
  EXPECT_OK(coordinator_.Step(2, Trained(2, 7, 1)));
  EXPECT_TRUE(sinks_[0].empty()) << "a step is under way";
  Vote(1, 2, 9).IgnoreError();
  ASSERT_OK(Vote(0, 2, 9).status());
  AwaitEnd({0, 1}, "node 2 (ranks 4..5) is back");
  EXPECT_TRUE(sinks_[2].empty()) << "its trainers wait on";
  ReportAll(9, {0, 1});
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(Healing{.receiver = 2, .donor = 0}))
      << "nobody keeps its client states: those of the next one's ranks are as good";
}

// Its links may be bad.
TEST_F(FewerReplicasTest, OneThatIsBackIsNotWaitedForBeforeACommitIsMadeWithIt) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  EXPECT_OK(coordinator_.Step(2, Trained(2, 7, 1)));
  Vote(0, 2, 8).IgnoreError();
  ASSERT_OK(Vote(1, 2, 8).status());
  AwaitEnd({0, 1}, "is back");
  ReportAll(8, {0, 1});
  AwaitStart({0, 1, 2});
  EXPECT_OK(coordinator_.Step(2, EndEpoch{.model = "m", .epoch = 3, .why = absl::UnavailableError("connect")}));
  AwaitEnd({0, 1, 2}, "connect");
  ReportAll(8, {0, 1});
  AwaitStart({0, 1});
}

TEST_F(FewerReplicasTest, OneThatIsBackWithAnotherStateIsToldSoAlone) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  ModelReport other = Trained(2, 7, 1);
  other.history_id = other.lineage = "another";
  EXPECT_OK(coordinator_.Step(2, other));
  const ReceivedMessage message = sinks_[2].Next();
  EXPECT_TRUE(message.refused);
  EXPECT_THAT(message.why,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got commit 7 of history another")));
  EXPECT_THAT(message.why.message(), HasSubstr("its state is not wanted"));
  EXPECT_OK(coordinator_.Step(2, Trained(2, 9, 1)));
  EXPECT_TRUE(sinks_[2].Next().refused) << "it is ahead";
  Vote(0, 2, 8).IgnoreError();
  ASSERT_OK(Vote(1, 2, 8).status());
  EXPECT_TRUE(sinks_[0].empty());
}

TEST_F(FewerReplicasTest, OneThatFitsNoneOfTheOthersKeepsNoneFromStarting) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("over")}));
  AwaitEnd({0, 1}, "over");
  Return(2);
  ModelReport other = Trained(2, 7, 1);
  other.history_id = other.lineage = "another";
  EXPECT_OK(coordinator_.Step(2, other));
  EXPECT_TRUE(sinks_[2].empty());
  ReportAll(7, {0, 1});
  EXPECT_TRUE(sinks_[2].Next().refused);
  AwaitStart({0, 1});
}

// A node with a model of another spec under that name is told so, and does not affect the others.
TEST_F(FewerReplicasTest, OneWithAnotherSpecDecidesNothing) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  ModelReport other = Trained(2, 0, std::nullopt);
  other.spec_fingerprint = 2;
  other.needs_every_node = true;
  EXPECT_OK(coordinator_.Step(2, other));
  EXPECT_TRUE(sinks_[2].Next().refused);
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("over")}));
  AwaitEnd({0, 1}, "over");
  ReportAll(7, {0, 1});
  for (const int node : {0, 1}) ASSERT_FALSE(sinks_[node].empty());
  AwaitStart({0, 1});
}

TEST(FiveReplicasTest, OneThatFitsNoneOfTheOthersKeepsNoneFromReturning) {
  constexpr int kFive = 5;
  RecordingListener sinks[kFive];
  Coordinator coordinator({.nodes = kFive, .quorum = {.min_nodes = 3, .timeout = absl::ZeroDuration()}});
  for (int node = 0; node < kFive; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  for (int node = 0; node < kFive; ++node) coordinator.Step(node, Trained(node, 7, std::nullopt)).IgnoreError();
  for (RecordingListener& sink : sinks) ASSERT_TRUE(sink.Next().start);
  coordinator.Leave(3);
  for (const int node : {0, 1, 2, 4}) ASSERT_FALSE(sinks[node].Next().start);
  coordinator.Leave(4);
  for (const int node : {0, 1, 2}) coordinator.Step(node, Trained(node, 7, std::nullopt)).IgnoreError();
  for (const int node : {0, 1, 2}) ASSERT_THAT(sinks[node].Next().active, ElementsAre(0, 1, 2));
  EXPECT_OK(coordinator.Step(0, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("over")}));
  for (const int node : {0, 1, 2}) ASSERT_FALSE(sinks[node].Next().start);
  for (const int node : {3, 4}) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  ModelReport other = Trained(4, 7, std::nullopt);
  other.history_id = other.lineage = "another";
  EXPECT_OK(coordinator.Step(3, Trained(3, 5, std::nullopt)));
  EXPECT_OK(coordinator.Step(4, other));
  for (const int node : {0, 1, 2}) coordinator.Step(node, Trained(node, 7, std::nullopt)).IgnoreError();
  for (const int node : {0, 1, 2, 3}) {
    ASSERT_FALSE(sinks[node].empty()) << "node " << node;
    const ReceivedMessage message = sinks[node].Next();
    EXPECT_TRUE(message.start) << message.why;
    EXPECT_THAT(message.active, ElementsAre(0, 1, 2, 3));
  }
  const ReceivedMessage refused = sinks[4].Next();
  EXPECT_TRUE(refused.refused);
  EXPECT_THAT(refused.why.message(), AllOf(HasSubstr("up to commit 7"), HasSubstr("got commit 7 of history another")));
}

TEST_F(FewerReplicasTest, OneThatTakesNoPartHasNoVoteAndNoValues) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  EXPECT_THAT(Vote(2, 2, 8).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 2 takes no part")));
  EXPECT_THAT(coordinator_.Put(2, "m", 2, "k", "v"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(coordinator_.Get(2, "m", 2, "k", kNow), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(coordinator_.PutParts(2, "m", 2, "k", {"", "", ""}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(FewerReplicasTest, PartsAreThoseOfTheNodesThatTakePart) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  ASSERT_OK(coordinator_.PutParts(0, "m", 2, "k", {"", "0 for 1", ""}));
  EXPECT_THAT(coordinator_.GetParts(1, "m", 2, "k", kNow),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("got no part of node 1")));
  ASSERT_OK(coordinator_.PutParts(1, "m", 2, "k", {"1 for 0", "", ""}));
  EXPECT_THAT(coordinator_.GetParts(1, "m", 2, "k", kNow), IsOkAndHolds(ElementsAre("0 for 1", "", "")));
}

TEST_F(FewerReplicasTest, AValueIsThatOfTheNodeThatHasPutIt) {
  ReportAll(0);
  AwaitStart({0, 1, 2});
  ASSERT_OK(coordinator_.Put(1, "m", 1, "healed", "yes"));
  EXPECT_THAT(coordinator_.Get(2, "m", 1, "healed", kNow), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(coordinator_.Get(1, "m", 1, "healed", kNow), IsOkAndHolds("yes"));
}

TEST_F(FewerReplicasTest, OneThatTakesNoPartIsNotAskedToSave) {
  const auto order = [&] {
    return coordinator_.Step(0, SaveMessage{.model = "m", .what = SaveOrder{.id = 1, .step = 7}});
  };
  ReportAll(7);
  AwaitStart({0, 1, 2});
  EXPECT_OK(order());
  for (const int node : {1, 2}) EXPECT_TRUE(sinks_[node].Next().save.has_value());
  ASSERT_OK(coordinator_.Step(0, SaveMessage{.model = "m", .what = SaveEnd{.id = 1}}));
  for (const int node : {1, 2}) EXPECT_TRUE(sinks_[node].Next().save.has_value());
  Lose(2);
  AwaitEnd({0, 1}, "lost");
  ReportAll(7, {0, 1});
  AwaitStart({0, 1});
  Return(2);
  const auto refused = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (ranks 4..5) takes no part"));
  EXPECT_THAT(order(), refused);
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("over")}));
  AwaitEnd({0, 1}, "over");
  EXPECT_THAT(order(), refused) << "between epochs";
  for (const int node : {1, 2}) EXPECT_TRUE(sinks_[node].empty());
}

TEST_F(FewerReplicasTest, ALossOfOneThatTakesNoPartEndsNothing) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  Lose(2);
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
}

TEST_F(FewerReplicasTest, OneThatTakesNoPartEndsNothing) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  EXPECT_OK(coordinator_.Step(2, Trained(2, 7, 1)));
  EXPECT_OK(coordinator_.Step(2, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("mine")}));
  EXPECT_OK(coordinator_.Step(
      2, RankDetached{.model = "m", .epoch = 2, .rank = 4, .command_count = 5, .why = absl::AbortedError("has left")}));
  EXPECT_OK(coordinator_.Step(2, ModelDeleted{.model = "m"}));
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
  EXPECT_OK(coordinator_.Step(1, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("ours")}));
  AwaitEnd({0, 1}, "ours");
}

TEST_F(FewerReplicasTest, EpochNumbersAreBehindThoseOfOneThatIsBack) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Return(2);
  ModelReport back = Trained(2, 7, 1);
  back.last_epoch = 20;
  EXPECT_OK(coordinator_.Step(2, back));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 2, .why = absl::AbortedError("over")}));
  AwaitEnd({0, 1}, "over");
  ReportAll(7, {0, 1});
  EXPECT_EQ(AwaitStart({0, 1, 2}).epoch, 21);
}

TEST_F(FewerReplicasTest, AllLeaveWhenThoseWhoTakePartHave) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_OK(coordinator_.Step(
        rank / kDevices,
        RankDetached{
            .model = "m", .epoch = 2, .rank = rank, .command_count = 5, .why = absl::AbortedError("has left")}));
  }
  for (const int node : {0, 1}) EXPECT_EQ(sinks_[node].Next().last_command, 5);
  AwaitEnd({0, 1}, "has left");
}

// --- A history begins with all ---

ModelReport Begun(int node, const std::string& history) {
  ModelReport report = Trained(node, 0, std::nullopt);
  report.history_id = history;
  report.lineage = "creation";
  report.untouched = report.fresh = true;
  return report;
}

class BeginningsTest : public testing::Test {
 protected:
  void Join(int node) { ASSERT_OK(coordinator_.Join(node, kDevices, &sinks_[node])); }

  RecordingListener sinks_[kNodes];
  Coordinator coordinator_{Coordinator::Options{
      .nodes = kNodes,
      .closed = {{.model = "m", .history_id = "h", .epoch = 5, .commit_number = 0, .active = {0, 1}}},
      .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()},
      .device_counts = {kDevices, kDevices, kDevices}}};
};

// A node with the only state is away.
TEST_F(BeginningsTest, NodesThatBeganAnewDoNotTrainWithoutTheOthers) {
  for (const int node : {0, 1}) Join(node);
  for (const int node : {0, 1}) coordinator_.Step(node, Begun(node, absl::StrCat("of ", node))).IgnoreError();
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
  Join(2);
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator_.Step(2, Trained(2, 9, 1)));
  for (RecordingListener& sink : sinks_) {
    ASSERT_FALSE(sink.empty());
    EXPECT_TRUE(sink.Next().refused) << "a person is to say which counts";
  }
}

TEST_F(BeginningsTest, NodesThatWereImportedIntoDoNotTrainWithoutTheOthers) {
  const auto report = [&](int node) {
    ModelReport imported = Begun(node, absl::StrCat("of ", node));
    imported.lineage = "import";
    imported.fresh = false;
    EXPECT_OK(coordinator_.Step(node, imported));
  };
  for (const int node : {0, 1}) Join(node);
  for (const int node : {0, 1}) report(node);
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
  Join(2);
  report(2);
  for (RecordingListener& sink : sinks_) {
    ASSERT_FALSE(sink.empty());
    EXPECT_THAT(sink.Next().active, ElementsAre(0, 1, 2));
  }
}

TEST_F(BeginningsTest, NorDoTheyWhereOneHealsAnother) {
  ModelReport imported = Begun(0, "of 0");
  imported.lineage = "import";
  imported.fresh = false;
  for (const int node : {0, 1}) Join(node);
  EXPECT_OK(coordinator_.Step(0, imported));
  EXPECT_OK(coordinator_.Step(1, Begun(1, "of 1")));
  for (const int node : {0, 1}) EXPECT_TRUE(sinks_[node].empty());
}

TEST_F(BeginningsTest, WhatHasBegunWithAllGoesOnWithFewerBeforeItsFirstCommit) {
  for (int node = 0; node < kNodes; ++node) Join(node);
  const auto report = [&](int node) {
    ModelReport begun = Begun(node, "begun");
    begun.fresh = false;
    EXPECT_OK(coordinator_.Step(node, begun));
  };
  for (int node = 0; node < kNodes; ++node) report(node);
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.Next().start);
  coordinator_.Leave(2);
  for (const int node : {0, 1}) EXPECT_FALSE(sinks_[node].Next().start);
  for (const int node : {0, 1}) report(node);
  for (const int node : {0, 1}) {
    ASSERT_FALSE(sinks_[node].empty());
    EXPECT_THAT(sinks_[node].Next().active, ElementsAre(0, 1));
  }
}

TEST_F(BeginningsTest, WhatACoordinatorBeforeHasBegunWithAllDoesToo) {
  for (const int node : {0, 1}) Join(node);
  for (const int node : {0, 1}) {
    ModelReport begun = Begun(node, "h");
    begun.fresh = false;
    EXPECT_OK(coordinator_.Step(node, begun));
  }
  for (const int node : {0, 1}) EXPECT_THAT(sinks_[node].Next().active, ElementsAre(0, 1));
}

// --- Who has the newest state ---

TEST_F(FewerReplicasTest, ANodeThatWasAwayIsHealedFromTheNewestThoughNode0HasNone) {
  ASSERT_NO_FATAL_FAILURE(ContinueWithoutTwo(7));
  Lose(0);
  Return(0);
  Return(2);
  sinks_[1].Next();
  ModelReport lost = Trained(0, 0, std::nullopt);
  lost.lost = absl::DataLossError("gone");
  EXPECT_OK(coordinator_.Step(0, lost));
  EXPECT_OK(coordinator_.Step(2, Trained(2, 7, 1)));
  EXPECT_OK(coordinator_.Step(1, Trained(1, 9, 0)));
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings,
              ElementsAre(Healing{.receiver = 0, .donor = 1}, Healing{.receiver = 2, .donor = 1}));
}

TEST(HealingPlanTest, WithoutNode0SoManyOthersAreNeededThatOneHasTheNewestState) {
  ModelReports reports(5);
  for (int node = 0; node < 5; ++node) reports[node] = Trained(node, 7, std::nullopt);
  reports[0]->lost = absl::DataLossError("gone");
  // Any three that have trained without node 2 and node 3 would have had one of these, and of three others.
  EXPECT_THAT(PlanHealings(reports, {0, 1, 2}, 10, /*min_nodes=*/3), IsEmpty());
  EXPECT_THAT(PlanHealings(reports, {0, 1, 2, 3}, 10, 3), ElementsAre(Healing{.receiver = 0, .donor = 1}));
  EXPECT_THAT(PlanHealings(reports, {0, 1, 2}, 10, 4), ElementsAre(Healing{.receiver = 0, .donor = 1}));
}

TEST(HealingPlanTest, WithEveryNodeNoneIsBehind) {
  ModelReports reports(2);
  reports[0] = Trained(0, 9, 1);
  reports[1] = Trained(1, 7, 0);
  EXPECT_THAT(PlanHealings(reports, {0, 1}, 4, /*min_nodes=*/2), IsEmpty());
  EXPECT_THAT(PlanHealings(reports, {0, 1}, 4, /*min_nodes=*/1), ElementsAre(Healing{.receiver = 1, .donor = 0}));
  reports[1]->history_id = "another";
  EXPECT_THAT(PlanHealings(reports, {0, 1}, 4, /*min_nodes=*/1), IsEmpty());
}

TEST(HealingPlanTest, NodesBeforeAndBehindGoRound) {
  EXPECT_EQ(PreviousNode(2, {0, 2, 5}), 0);
  EXPECT_EQ(PreviousNode(0, {0, 2, 5}), 5);
  EXPECT_EQ(PreviousNode(0, {0}), 0);
}

// --- Timeout ---

class AttendanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(members_.Join(node, 1));
  }
  std::optional<std::vector<int>> Next(const std::vector<int>& before, SteadyTime now, bool may_be_fewer = true) {
    return NextActive(
        members_, before, [&](int node) { return ready_ == node; }, policy_, may_be_fewer, left_out_, now);
  }

  QuorumPolicy policy_{.min_nodes = 2, .timeout = absl::Seconds(10)};
  Membership members_{kNodes};
  int ready_ = -1;
  std::vector<int> left_out_;
};

TEST_F(AttendanceTest, ALostNodeIsWaitedForUntilTheTimeout) {
  members_.Leave(2);
  const SteadyTime lost_at = members_.changed_at(2);
  EXPECT_EQ(Next({0, 1, 2}, lost_at), std::nullopt);
  EXPECT_EQ(Next({0, 1, 2}, lost_at + std::chrono::milliseconds(9999)), std::nullopt);
  EXPECT_THAT(Next({0, 1, 2}, lost_at + std::chrono::seconds(10)), Optional(ElementsAre(0, 1)));
  EXPECT_EQ(Next({0, 1, 2}, lost_at + std::chrono::seconds(10), /*may_be_fewer=*/false), std::nullopt);
  EXPECT_THAT(Next({0, 1}, lost_at), Optional(ElementsAre(0, 1))) << "the others are there already";
  EXPECT_EQ(NextGivenUp(members_, policy_, lost_at), lost_at + std::chrono::seconds(10));
  EXPECT_EQ(NextGivenUp(members_, policy_, lost_at + std::chrono::seconds(10)), std::nullopt);
}

TEST_F(AttendanceTest, OneThatIsBackTakesPartWhenItIsReady) {
  EXPECT_THAT(Next({0, 1}, SteadyNow()), Optional(ElementsAre(0, 1)));
  ready_ = 2;
  EXPECT_THAT(Next({0, 1}, SteadyNow()), Optional(ElementsAre(0, 1, 2)));
}

TEST_F(AttendanceTest, OneThatIsLostAgainAndAgainHasToStayForLonger) {
  const auto stay = [&] {
    members_.Leave(2);
    EXPECT_FALSE(MayReturn(members_, 2, policy_, SteadyNow()));
    EXPECT_OK(members_.Join(2, 1));
    for (int64_t seconds = 0;; ++seconds) {
      const SteadyTime now = members_.changed_at(2) + std::chrono::seconds(seconds);
      if (MayReturn(members_, 2, policy_, now)) return seconds;
    }
  };
  std::vector<int64_t> stays;
  for (int loss = 0; loss < 10; ++loss) stays.push_back(stay());
  EXPECT_THAT(stays, ElementsAre(0, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280));
}

TEST(CallerTimeoutTest, AThreadStartsEpochsWhenItIsOver) {
  RecordingListener sinks[kNodes];
  Coordinator coordinator({.nodes = kNodes, .quorum = {.min_nodes = 2, .timeout = absl::Milliseconds(20)}});
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  std::thread absences([&] { coordinator.ServeAbsences(); });
  coordinator.Leave(2);
  for (const int node : {0, 1}) coordinator.Step(node, Trained(node, 0, std::nullopt)).IgnoreError();
  for (const int node : {0, 1}) EXPECT_THAT(sinks[node].Next().active, ElementsAre(0, 1));
  coordinator.Stop();
  absences.join();
}

TEST(CallerTimeoutTest, ACoordinatorThatKnowsTheDevicesWaitsForNobodyElse) {
  RecordingListener sinks[2];
  Coordinator coordinator({.nodes = kNodes,
                           .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()},
                           .device_counts = {kDevices, kDevices, kDevices}});
  for (const int node : {0, 1}) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  EXPECT_OK(coordinator.AwaitWorld(absl::ZeroDuration()));
  for (const int node : {0, 1}) coordinator.Step(node, Trained(node, 3, 1 - node)).IgnoreError();
  for (const int node : {0, 1}) EXPECT_THAT(sinks[node].Next().active, ElementsAre(0, 1));
}

TEST(CallerTimeoutTest, OneWithWhichNoCommitIsMadeHasToStayForLonger) {
  RecordingListener sinks[kNodes];
  Coordinator coordinator({.nodes = kNodes,
                           .closed = {{.model = "m", .history_id = "h", .epoch = 5, .active = {0, 1}}},
                           .quorum = {.min_nodes = 2, .timeout = absl::Hours(1)}});
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  const auto start = [&](const std::vector<int>& active) {
    for (const int node : {2, 1, 0}) coordinator.Step(node, Trained(node, 7, std::nullopt)).IgnoreError();
    for (const int node : active) {
      ASSERT_FALSE(sinks[node].empty());
      EXPECT_EQ(sinks[node].Next().active, active);
    }
  };
  for (const int64_t epoch : {6, 7}) {
    start({0, 1, 2});
    EXPECT_OK(coordinator.Step(0, EndEpoch{.model = "m", .epoch = epoch, .why = absl::UnavailableError("connect")}));
    for (RecordingListener& sink : sinks) ASSERT_FALSE(sink.Next().start);
  }
  start({0, 1});
  EXPECT_TRUE(sinks[2].empty()) << "its trainers wait";
  const std::vector<HeldBackNode> held_back = coordinator.ViewWorld().held_back;
  ASSERT_EQ(held_back.size(), 1u);
  EXPECT_EQ(held_back[0].node, 2);
  EXPECT_EQ(held_back[0].losses, 2);
  EXPECT_GT(held_back[0].held_for, absl::Hours(1));
  EXPECT_LE(held_back[0].held_for, absl::Hours(2));
}

TEST(CallerTimeoutTest, OneThatIsNeededDoesNotHaveToStay) {
  RecordingListener sinks[kNodes];
  Coordinator coordinator({.nodes = kNodes,
                           .closed = {{.model = "m", .history_id = "h", .epoch = 5, .active = {0, 1}}},
                           .quorum = {.min_nodes = 2, .timeout = absl::Hours(1)}});
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
  for (int loss = 0; loss < 3; ++loss) {
    coordinator.Leave(2);
    ASSERT_OK(coordinator.Join(2, kDevices, &sinks[2]));
  }
  for (const int node : {2, 1, 0}) coordinator.Step(node, Begun(node, "begins")).IgnoreError();
  for (RecordingListener& sink : sinks) {
    ASSERT_FALSE(sink.empty());
    EXPECT_THAT(sink.Next().active, ElementsAre(0, 1, 2));
  }
}

// --- A node 0 that is started again ---

// A restarted node 0 of three nodes. It knows from an earlier coordinator that nodes 0 and 1 made commit 7 in epoch 5.
class RestartedWithoutTwoTest : public testing::Test {
 protected:
  static Coordinator::Options Options(std::vector<int> active, int min_nodes = 2) {
    return {.nodes = kNodes,
            .closed = {{.model = "m", .history_id = "h", .epoch = 5, .commit_number = 7, .active = std::move(active)}},
            .quorum = {.min_nodes = min_nodes, .timeout = absl::ZeroDuration()},
            .device_counts = {kDevices, kDevices, kDevices}};
  }
  void JoinAll(Coordinator& coordinator) {
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks_[node]));
  }
  static ModelReport Old(int node, int64_t commit_number, int64_t last_epoch) {
    ModelReport report = Trained(node, commit_number, std::nullopt);
    report.last_epoch = last_epoch;
    return report;
  }
  // Node 0 without a state, and node 1.
  void JoinEmptyBesideOne(Coordinator& coordinator) {
    for (const int node : {0, 1}) ASSERT_OK(coordinator.Join(node, kDevices, &sinks_[node]));
    ModelReport fresh = Trained(0, 0, std::nullopt);
    fresh.fresh = true;
    EXPECT_OK(coordinator.Step(0, fresh));
    EXPECT_OK(coordinator.Step(1, Old(1, 7, 5)));
  }
  void ExpectStart(const std::vector<int>& nodes) {
    for (const int node : nodes) {
      ASSERT_FALSE(sinks_[node].empty()) << "node " << node;
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_TRUE(message.start) << message.why;
      EXPECT_EQ(message.active, nodes);
    }
  }

  RecordingListener sinks_[kNodes];
};

TEST_F(RestartedWithoutTwoTest, OneThatTookNoPartBeforeIsNotWaitedFor) {
  Coordinator coordinator(Options({0, 1}));
  JoinAll(coordinator);
  for (const int node : {0, 1}) coordinator.Step(node, Old(node, 7, 5)).IgnoreError();
  ExpectStart({0, 1});
  EXPECT_TRUE(sinks_[2].empty());
}

TEST_F(RestartedWithoutTwoTest, OneThatFitsNoneOfTheOthersKeepsNoneFromStarting) {
  Coordinator coordinator(Options({0, 1}));
  JoinAll(coordinator);
  ModelReport other = Old(2, 7, 3);
  other.history_id = other.lineage = "another";
  EXPECT_OK(coordinator.Step(2, other));
  for (const int node : {0, 1}) coordinator.Step(node, Old(node, 7, 5)).IgnoreError();
  ASSERT_FALSE(sinks_[2].empty());
  EXPECT_TRUE(sinks_[2].Next().refused);
  ExpectStart({0, 1});
}

// Journals do not name the nodes of an epoch.
TEST_F(RestartedWithoutTwoTest, WhereItIsNotKnownWhoHasNotHeardOfTheEpochWasNotInIt) {
  Coordinator coordinator(Options({}));
  JoinAll(coordinator);
  ModelReport away = Old(2, 4, 4);
  away.attached_ranks.clear();
  EXPECT_OK(coordinator.Step(2, away));
  EXPECT_OK(coordinator.Step(1, Old(1, 7, 5)));
  EXPECT_OK(coordinator.Step(0, Old(0, 7, 5)));
  ExpectStart({0, 1});
}

TEST_F(RestartedWithoutTwoTest, WhoWasInTheEpochIsWaitedFor) {
  for (const std::vector<int>& active : {std::vector<int>{0, 1, 2}, std::vector<int>{}}) {
    Coordinator coordinator(Options(active));
    JoinAll(coordinator);
    ModelReport late = Old(2, 7, 5);
    late.attached_ranks.clear();
    EXPECT_OK(coordinator.Step(2, late));
    for (const int node : {0, 1}) coordinator.Step(node, Old(node, 7, 5)).IgnoreError();
    EXPECT_TRUE(sinks_[0].empty());
    EXPECT_OK(coordinator.Step(2, Old(2, 7, 5)));
    ExpectStart({0, 1, 2});
  }
}

// Epochs had three nodes of five at least, and are to have four now: two old states are as many as had to be asked
// before.
TEST_F(RestartedWithoutTwoTest, WhoIsBehindADecisionWaitsForOneThatHasIt) {
  constexpr int kFive = 5;
  RecordingListener sinks[kFive];
  Coordinator coordinator(
      {.nodes = kFive,
       .closed = {{.model = "m", .history_id = "h", .epoch = 5, .commit_number = 9, .active = {0, 1, 2}}},
       .quorum = {.min_nodes = 4, .timeout = absl::ZeroDuration()},
       .device_counts = std::vector<int>(kFive, kDevices)});
  const auto join = [&](int node) { ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node])); };
  const auto lost = [](int node) {
    ModelReport report = Trained(node, 0, std::nullopt);
    report.lost = absl::DataLossError("gone");
    return report;
  };
  for (const int node : {0, 1, 3, 4}) join(node);
  for (const int node : {0, 1}) coordinator.Step(node, lost(node)).IgnoreError();
  for (const int node : {3, 4}) coordinator.Step(node, Trained(node, 5, std::nullopt)).IgnoreError();
  for (RecordingListener& sink : sinks) EXPECT_TRUE(sink.empty());
  join(2);
  EXPECT_OK(coordinator.Step(2, Trained(2, 9, std::nullopt)));
  EXPECT_THAT(sinks[0].Next().healings, testing::SizeIs(4));
  // Without node 2 no node has the state.
  coordinator.Step(0, EndEpoch{.model = "m", .epoch = 6, .why = absl::AbortedError("over")}).IgnoreError();
  for (const int node : {3, 4}) coordinator.Step(node, Trained(node, 5, std::nullopt)).IgnoreError();
  for (const int node : {0, 1, 2}) coordinator.Step(node, lost(node)).IgnoreError();
  EXPECT_FALSE(sinks[0].Next().start) << "that end";
  EXPECT_THAT(sinks[0].Next().why, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("commit 9 of history h")));
}

// One of the three nodes, other than node 0, may have taken no part in the last epoch.
TEST_F(RestartedWithoutTwoTest, ANode0WithoutAStateWaitsForOneMore) {
  Coordinator coordinator(Options({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(JoinEmptyBesideOne(coordinator));
  EXPECT_TRUE(sinks_[0].empty()) << "nobody is refused";
  EXPECT_TRUE(sinks_[1].empty());
  ASSERT_OK(coordinator.Join(2, kDevices, &sinks_[2]));
  EXPECT_OK(coordinator.Step(2, Old(2, 7, 5)));
  const ReceivedMessage message = sinks_[0].Next();
  EXPECT_TRUE(message.start) << message.why;
  EXPECT_THAT(message.healings, testing::SizeIs(1));
}

TEST_F(RestartedWithoutTwoTest, APersonMaySayThatOneIsEnough) {
  Coordinator coordinator(Options({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(JoinEmptyBesideOne(coordinator));
  ASSERT_OK(coordinator.OrderHealing("m", 1).status());
  ExpectStart({0, 1});
}

// A failing disk may keep a decision whose write failed, so that no node was told of it.
TEST_F(RestartedWithoutTwoTest, ADecisionThatNoneOfItsVotersHasWasNeverTold) {
  for (const bool all_are_without : {true, false}) {
    SCOPED_TRACE(all_are_without);
    RecordingListener sinks[kNodes];
    ClosedEpoch before{.model = "m", .history_id = "h", .epoch = 5, .commit_number = 8, .active = {0, 1, 2}};
    before.last_decision = {.epoch = 5, .commit_number = 8, .decision = {.apply = true}};
    Coordinator coordinator({.nodes = kNodes,
                             .closed = {before},
                             .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()},
                             .device_counts = std::vector<int>(kNodes, kDevices)});
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, kDevices, &sinks[node]));
    ModelReport lost = Trained(0, 0, std::nullopt);
    lost.lost = absl::DataLossError("gone");
    EXPECT_OK(coordinator.Step(0, lost));
    EXPECT_OK(coordinator.Step(1, Old(1, 7, 5)));
    // A node with another state may be present instead of a node with that state.
    coordinator.Step(2, Old(2, all_are_without ? 7 : 6, 5)).IgnoreError();
    const ReceivedMessage message = sinks[1].Next();
    EXPECT_EQ(message.start, all_are_without) << message.why;
    if (all_are_without) {
      EXPECT_THAT(message.healings, testing::SizeIs(1));
    } else {
      EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("commit 8 of history h")));
    }
  }
}

TEST_F(RestartedWithoutTwoTest, AllTakePartWhereAllHaveTo) {
  Coordinator coordinator(Options({0, 1}, /*min_nodes=*/kNodes));
  JoinAll(coordinator);
  for (const int node : {0, 1}) coordinator.Step(node, Old(node, 7, 5)).IgnoreError();
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator.Step(2, Old(2, 7, 5)));
  ExpectStart({0, 1, 2});
}

TEST_F(RestartedWithoutTwoTest, NodesOfAnotherWorldTellNothing) {
  Coordinator coordinator(Options({0, 1, 4}));
  JoinAll(coordinator);
  for (const int node : {0, 1}) coordinator.Step(node, Old(node, 7, 5)).IgnoreError();
  EXPECT_TRUE(sinks_[0].empty());
  EXPECT_OK(coordinator.Step(2, Old(2, 7, 5)));
  ExpectStart({0, 1, 2});
}

}  // namespace
}  // namespace paramshard::server
