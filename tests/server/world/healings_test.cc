// Which nodes a coordinator has healed by which, and what they are told of each other's client states.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/world/cluster_messages.h"
#include "server/world/coordinator.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr int kNodes = 3;
constexpr int64_t kCommit = 7;

// A node's only rank has its number.
ModelReport Trained(int node, int64_t commit_number = kCommit) {
  ModelReport report = MakeReport({node}, commit_number, commit_number, 1, /*shard_size=*/1);
  report.history_id = "h";
  report.lineage = "l";
  report.keeps_previous = true;
  report.previous = (node + kNodes - 1) % kNodes;
  return report;
}

ModelReport Begun(int node) {
  ModelReport report = MakeReport({node}, 0, 0, 1, /*shard_size=*/1);
  report.history_id = "another";
  report.lineage = "creation";
  report.untouched = report.fresh = report.keeps_previous = true;
  return report;
}

ModelReport Lost(int node) {
  ModelReport report = Begun(node);
  report.fresh = false;
  report.lost = absl::DataLossError("gone");
  return report;
}

// With its server, which has not begun it anew.
ModelReport Unmade() {
  ModelReport report;
  report.model = "m";
  report.lost = absl::DataLossError("gone");
  return report;
}

class HealingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator_.Join(node, 1, &sinks_[node]));
  }
  void Report(const std::vector<ModelReport>& reports) {
    for (int node = 0; node < kNodes; ++node) coordinator_.Step(node, reports[node]).IgnoreError();
  }
  std::vector<Healing> AwaitStart() {
    std::vector<ReceivedMessage> messages;
    for (RecordingListener& sink : sinks_) messages.push_back(sink.Next());
    for (const ReceivedMessage& one : messages) {
      EXPECT_TRUE(one.start) << one.why;
      EXPECT_EQ(one.history_id, "h");
      EXPECT_EQ(one.healings, messages[0].healings);
    }
    return messages[0].healings;
  }
  void ExpectRefusal() {
    for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.Next().refused);
  }

  RecordingListener sinks_[kNodes];
  Coordinator coordinator_{kNodes};
};

TEST_F(HealingsTest, EqualStatesNeedNone) {
  Report({Trained(0), Trained(1), Trained(2)});
  EXPECT_THAT(AwaitStart(), IsEmpty());
}

TEST_F(HealingsTest, TheNextNodeHeals) {
  Report({Begun(0), Trained(1), Trained(2)});
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 0, .donor = 1}));
}

TEST_F(HealingsTest, Node0HealsTheLastOne) {
  Report({Trained(0), Trained(1), Lost(2)});
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 2, .donor = 0}));
}

TEST_F(HealingsTest, CommitsFollowThatOfTheState) {
  Report({Begun(0), Trained(1), Trained(2)});
  AwaitStart();
  EXPECT_THAT(coordinator_.Vote(0, MakeVote(1, 1, {{0, 0, 0}}), kNow),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want commit 8")));
}

TEST_F(HealingsTest, TwoInARowAreNotHealed) {
  Report({Trained(0), Begun(1), Begun(2)});
  ExpectRefusal();
}

TEST_F(HealingsTest, ADonorKeepsTheClientStates) {
  ModelReport forgetful = Trained(2);
  forgetful.keeps_previous = false;
  Report({Trained(0), Begun(1), forgetful});
  ExpectRefusal();
}

TEST_F(HealingsTest, StatesThatDifferAreForAPerson) {
  Report({Trained(0), Begun(1), Trained(2, kCommit + 1)});
  ExpectRefusal();
}

TEST_F(HealingsTest, AllThatBeginBeginTogether) {
  ModelReport reports[] = {Begun(0), Begun(1), Begun(2)};
  for (ModelReport& report : reports) report.history_id = "h";
  Report({reports[0], reports[1], reports[2]});
  EXPECT_THAT(AwaitStart(), IsEmpty());
}

TEST_F(HealingsTest, NobodyHealsWhereAllHaveLostIt) {
  Report({Lost(0), Lost(1), Lost(2)});
  ExpectRefusal();
}

TEST_F(HealingsTest, OneThatHasNotMadeItYetIsWaitedFor) {
  Report({Trained(0), Unmade(), Trained(2)});
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  EXPECT_OK(coordinator_.Step(1, Lost(1)));
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 1, .donor = 2}));
}

TEST_F(HealingsTest, WhatOthersSaidBeforeTheEpochIsNotJudged) {
  ModelReport reports[] = {Begun(0), Begun(1), Begun(2)};
  for (ModelReport& report : reports) report.history_id = "h";
  Report({reports[0], reports[1], reports[2]});
  AwaitStart();
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("over")}));
  for (RecordingListener& sink : sinks_) sink.Next();
  // It is heard of first, while the others have not said yet what they have trained.
  coordinator_.Step(0, Lost(0)).IgnoreError();
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  EXPECT_OK(coordinator_.Step(1, Trained(1)));
  EXPECT_OK(coordinator_.Step(2, Trained(2)));
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 0, .donor = 1}));
}

TEST_F(HealingsTest, NorIsWhatTheySaidBeforeTheyHadHeardOfIt) {
  Report({Trained(0), Trained(1), Trained(2)});
  AwaitStart();
  EXPECT_OK(coordinator_.Step(2, Trained(2)));
  for (int node = 0; node < kNodes; ++node) {
    coordinator_.Vote(node, MakeVote(1, kCommit + 1, {{node, 0, 0}}), kNow).IgnoreError();
  }
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("over")}));
  for (RecordingListener& sink : sinks_) sink.Next();
  EXPECT_OK(coordinator_.Step(0, Trained(0, kCommit + 1)));
  EXPECT_OK(coordinator_.Step(1, Lost(1)));
  for (RecordingListener& sink : sinks_) EXPECT_TRUE(sink.empty());
  EXPECT_OK(coordinator_.Step(2, Trained(2, kCommit + 1)));
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 1, .donor = 2}));
}

TEST_F(HealingsTest, AnImportBeforeTheFirstCommitGivesWayButAtNode0) {
  ModelReport imported = Begun(1);
  imported.fresh = false;
  Report({Trained(0), imported, Trained(2)});
  EXPECT_THAT(AwaitStart(), ElementsAre(Healing{.receiver = 1, .donor = 2}));
  EXPECT_OK(coordinator_.Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("over")}));
  for (RecordingListener& sink : sinks_) sink.Next();
  imported.attached_ranks = {0};
  Report({imported, Trained(1), Trained(2)});
  ExpectRefusal();
}

TEST_F(HealingsTest, AModelThatAllShareHasNoReplica) {
  ModelReport reports[] = {Trained(0), Begun(1), Trained(2)};
  for (ModelReport& report : reports) report.shard_size = kNodes;
  Report({reports[0], reports[1], reports[2]});
  ExpectRefusal();
}

TEST_F(HealingsTest, EveryVoterHearsWhatTheRanksBeforeItHaveSent) {
  Report({Trained(0), Trained(1), Trained(2)});
  AwaitStart();
  const auto vote = [&](int node) {
    CommitVote one = MakeVote(1, kCommit + 1, {{node, 0, 0}});
    one.client_states = {absl::StrCat("of ", node)};
    return coordinator_.Vote(node, one, kNow);
  };
  EXPECT_THAT(vote(0), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(vote(1), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_OK_AND_ASSIGN(const CommitDecision last, vote(2));
  EXPECT_THAT(last.previous_client_states, Optional(ElementsAre("of 1")));
  // Nodes that ask again get it too.
  ASSERT_OK_AND_ASSIGN(const CommitDecision first, vote(0));
  EXPECT_THAT(first.previous_client_states, Optional(ElementsAre("of 2")));
  ASSERT_OK_AND_ASSIGN(const CommitDecision second, vote(1));
  EXPECT_THAT(second.previous_client_states, Optional(ElementsAre("of 0")));
}

TEST_F(HealingsTest, ClientStatesThatAreNoneAreRefused) {
  Report({Trained(0), Trained(1), Trained(2)});
  AwaitStart();
  CommitVote vote = MakeVote(1, kCommit + 1, {{0, 0, 0}});
  vote.client_states = {"a", "b"};
  EXPECT_THAT(coordinator_.Vote(0, vote, kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("or one for each rank")));
  vote.client_states = {std::string(kMaxClientStateBytes + 1, 'x')};
  EXPECT_THAT(coordinator_.Vote(0, vote, kNow), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HealingsTest, WhatIsNotSaidIsNotKnown) {
  Report({Trained(0), Trained(1), Trained(2)});
  AwaitStart();
  for (int node = 0; node < kNodes; ++node) {
    const auto decision = coordinator_.Vote(node, MakeVote(1, kCommit + 1, {{node, 0, 0}}), kNow);
    if (node + 1 == kNodes) {
      ASSERT_OK(decision.status());
      EXPECT_EQ(decision->previous_client_states, std::nullopt);
    }
  }
}

TEST(HealingMessageTest, ComeBackAsTheyWereSent) {
  const EpochStart start{
      .epoch = 3, .active = {0, 1, 2}, .healings = {{.receiver = 1, .donor = 2}, {.receiver = 0, .donor = 1}}};
  const auto again = std::get<EpochStart>(*FromProto(ToProto(ToNode(start))));
  EXPECT_EQ(again.healings, start.healings);
  EXPECT_EQ(again.active, start.active);
  const auto sent = [](const ModelReport& report) {
    return std::get<ModelReport>(*FromProto(ToProto(FromNode(report))));
  };
  CommitVote vote = MakeVote(1, 2, {});
  vote.client_states = {"a", ""};
  EXPECT_EQ(VoteOf(VoteMessage(1, vote, kNow)).client_states, vote.client_states);
  CommitDecision decision;
  EXPECT_EQ(DecisionOf(DecisionMessage(decision)).previous_client_states, std::nullopt);
  decision.previous_client_states = {"b", ""};
  EXPECT_EQ(DecisionOf(DecisionMessage(decision)).previous_client_states, decision.previous_client_states);
  EXPECT_TRUE(sent(Trained(0)).keeps_previous);
  EXPECT_EQ(sent(Trained(0)).previous, 2);
  EXPECT_FALSE(sent(MakeReport({})).keeps_previous);
  EXPECT_EQ(sent(MakeReport({})).previous, std::nullopt);
  ModelReport sums;
  sums.needs_every_node = true;
  EXPECT_TRUE(sent(sums).needs_every_node);
}

}  // namespace
}  // namespace paramshard::server
