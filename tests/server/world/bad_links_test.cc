// Tests of a coordinator whose daemons do not reach each other.
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/terms/healing_plan.h"
#include "server/world/coordinator.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Nodes = std::vector<int>;

constexpr int kMostNodes = 4;

// Policies of a world in which one node may be missing. A left-out node comes back at once, or not during a test.
QuorumPolicy Policy(int needed, absl::Duration first_stay = absl::Hours(1),
                    absl::Duration gathering = absl::ZeroDuration()) {
  return {.min_nodes = needed, .timeout = absl::Hours(1), .first_stay = first_stay, .gathering = gathering};
}

// Nodes with one rank each.
class BadLinksTest : public ::testing::Test {
 protected:
  void Start(int nodes, QuorumPolicy policy) {
    coordinator_.emplace(Coordinator::Options{.nodes = nodes, .quorum = policy});
    for (int node = 0; node < nodes; ++node) ASSERT_OK(coordinator_->Join(node, 1, &sinks_[node]));
  }
  void Report(int node, int64_t commit_number, const Nodes& last, bool needs_every_node = false) {
    EXPECT_OK(coordinator_->Step(node, MadeReport(node, commit_number, last, needs_every_node)));
  }
  static ModelReport MadeReport(int node, int64_t commit_number, const Nodes& last, bool needs_every_node) {
    ModelReport report = MakeReport({node}, commit_number, commit_number, 1, /*shard_size=*/1);
    report.history_id = "h";
    report.lineage = "l";
    report.keeps_previous = true;
    report.previous = PreviousNode(node, last);
    report.needs_every_node = needs_every_node;
    return report;
  }
  void ReportAll(const Nodes& nodes, int64_t commit_number = 0) {
    for (const int node : nodes) Report(node, commit_number, nodes);
  }
  void AwaitStart(const Nodes& nodes) {
    for (const int node : nodes) {
      ASSERT_FALSE(sinks_[node].empty()) << "node " << node;
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_TRUE(message.start) << message.why;
      EXPECT_EQ(message.active, nodes);
    }
  }
  void AwaitEnd(const Nodes& nodes, const ::testing::Matcher<std::string>& why) {
    for (const int node : nodes) {
      ASSERT_FALSE(sinks_[node].empty()) << "node " << node;
      AwaitEndOf(node, why);
    }
  }
  void AwaitEndOf(int node, const ::testing::Matcher<std::string>& why) {
    const ReceivedMessage message = sinks_[node].Next();
    EXPECT_FALSE(message.start);
    EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kUnavailable, why));
  }
  void ExpectNothing(const Nodes& nodes) {
    for (const int node : nodes) EXPECT_TRUE(sinks_[node].empty()) << "node " << node;
  }
  // The node has not reached these.
  void Miss(int node, int64_t epoch, const Nodes& peers) {
    std::vector<BadLink> links;
    for (const int peer : peers) {
      links.push_back({.peer = peer, .address = absl::StrCat("d", node), .peer_address = absl::StrCat("d", peer)});
    }
    EXPECT_OK(coordinator_->Step(node, EndEpoch{.model = "m", .epoch = epoch, .bad_links = links}));
  }
  // The nodes make a commit.
  void Commit(const Nodes& nodes, int64_t epoch, int64_t commit_number, const std::string& model = "m") {
    for (const int node : nodes) {
      CommitVote vote = MakeVote(epoch, commit_number, {{node, 1, 0}});
      vote.model = model;
      coordinator_->Vote(node, vote, absl::ZeroDuration()).IgnoreError();
    }
  }

  RecordingListener sinks_[kMostNodes];
  std::optional<Coordinator> coordinator_;
};

TEST_F(BadLinksTest, TheOthersGoOnWithoutTheHigherOneOfTwo) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, AllOf(HasSubstr("node 1 (d1) and node 2 (d2)"), HasSubstr("without node 2")));
  ExpectNothing({1});
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, ElementsAre("node 1 (d1) and node 2 (d2)"));
  EXPECT_THAT(coordinator_->ViewWorld().left_out, ElementsAre(2));
  ReportAll({0, 2});
  ExpectNothing({0, 2});
  ReportAll({1});
  AwaitStart({0, 1});
  Commit({0, 1}, 2, 1);
  ExpectNothing({0, 1, 2});
}

TEST_F(BadLinksTest, Node0IsNeverLeftOut) {
  ASSERT_NO_FATAL_FAILURE(Start(4, Policy(3)));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 1, 2, 3});
  Miss(0, 1, {1});
  AwaitEnd({1, 2, 3}, HasSubstr("without node 1"));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 2, 3});
}

TEST_F(BadLinksTest, OneThatWasLeftOutForLongEnoughIsTriedAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2, /*first_stay=*/absl::ZeroDuration())));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(2, 1, {1});
  AwaitEnd({0, 1}, HasSubstr("node 1 (d1) and node 2 (d2)"));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, IsEmpty());
}

// Another model, which needs all nodes, shows that they reach each other.
TEST_F(BadLinksTest, OneThatIsLeftOutNoMoreEndsTheEpochAtTheNextCommit) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, HasSubstr("without node 2"));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1});
  for (const int node : {0, 1, 2}) {
    ModelReport other = MadeReport(node, 0, {0, 1, 2}, /*needs_every_node=*/true);
    other.model = "other";
    EXPECT_OK(coordinator_->Step(node, other));
  }
  AwaitStart({0, 1, 2});
  Commit({0, 1}, 2, 1);
  ExpectNothing({0, 1, 2});
  Commit({0, 1, 2}, 1, 1, "other");
  EXPECT_THAT(coordinator_->ViewWorld().left_out, IsEmpty());
  Commit({0, 1}, 2, 2);
  AwaitEnd({0, 1}, HasSubstr("node 2 (rank 2) is back"));
  ReportAll({0, 1}, 2);
  AwaitStart({0, 1, 2});
}

// An absent node may have a trained state of a new model.
TEST_F(BadLinksTest, AModelThatBeginsTriesAll) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, HasSubstr("without node 2"));
  for (const int node : {0, 1, 2}) {
    ModelReport other = MadeReport(node, 0, {0, 1, 2}, /*needs_every_node=*/false);
    other.model = "other";
    other.history_id = absl::StrCat("begun at ", node);
    other.untouched = other.fresh = true;
    EXPECT_OK(coordinator_->Step(node, other));
  }
  AwaitStart({0, 1, 2});
}

// A present node without trainers does not count towards the number of nodes.
TEST_F(BadLinksTest, WhoIsLeftOutIsSaidAsItComes) {
  QuorumPolicy policy = Policy(3);
  policy.timeout = absl::ZeroDuration();
  ASSERT_NO_FATAL_FAILURE(Start(4, policy));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 1, 2, 3});
  coordinator_->Leave(3);
  AwaitEnd({0, 1, 2}, HasSubstr("node 3 (rank 3) lost"));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Commit({0, 1, 2}, 2, 1);
  ASSERT_OK(coordinator_->Join(3, 1, &sinks_[3]));
  Miss(1, 2, {2});
  AwaitEnd({0, 2}, HasSubstr("need them all: mend the network"));
  EXPECT_THAT(coordinator_->ViewWorld().left_out, IsEmpty());
}

TEST_F(BadLinksTest, WhereTooFewWouldBeLeftAllAreTried) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(0, 1, {1, 2});
  AwaitEnd({1, 2}, AllOf(HasSubstr("node 0 (d0) and node 1 (d1), node 0 (d0) and node 2 (d2)"),
                         HasSubstr("need them all: mend the network")));
  EXPECT_THAT(coordinator_->ViewWorld().left_out, IsEmpty());
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
}

TEST_F(BadLinksTest, WithoutPermissionAllAreTriedUntilTheyReachEachOther) {
  ASSERT_NO_FATAL_FAILURE(Start(3, {}));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, AllOf(HasSubstr("node 1 (d1) and node 2 (d2)"), HasSubstr("mend the network")));
  EXPECT_THAT(coordinator_->ViewWorld().left_out, IsEmpty());
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, ElementsAre("node 1 (d1) and node 2 (d2)"));
  Commit({0, 1, 2}, 2, 1);
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, IsEmpty());
}

TEST_F(BadLinksTest, GradientsThatAreSummedNeedEveryNode) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  const auto report = [&](int node) { Report(node, 0, {0, 1, 2}, /*needs_every_node=*/true); };
  for (const int node : {0, 1, 2}) report(node);
  AwaitStart({0, 1, 2});
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, HasSubstr("mend the network"));
  for (const int node : {0, 1, 2}) report(node);
  AwaitStart({0, 1, 2});
}

TEST_F(BadLinksTest, ALostNodeIsBlamedForNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(4, Policy(2)));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 1, 2, 3});
  Miss(1, 1, {2});
  AwaitEnd({0, 2, 3}, HasSubstr("without node 2"));
  coordinator_->Leave(1);
  EXPECT_THAT(coordinator_->ViewWorld().left_out, IsEmpty());
}

TEST_F(BadLinksTest, WhatMakesNoSenseIsIgnored) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(1, 7, {2});
  ExpectNothing({0, 1, 2});
  Miss(1, 1, {1, -1, 3, 1000000});
  AwaitEnd({0, 2}, HasSubstr(""));
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, IsEmpty());
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
}

// It is there, with a state that is older than the others'.
TEST_F(BadLinksTest, NoSaveIsOrderedOfOneThatIsLeftOut) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2)));
  const auto order = [&](int64_t step) {
    return coordinator_->Step(0, SaveMessage{.model = "m", .what = SaveOrder{.id = 1, .step = step}});
  };
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  EXPECT_OK(order(0));
  for (const int node : {1, 2}) EXPECT_TRUE(sinks_[node].Next().save.has_value());
  Miss(1, 1, {2});
  AwaitEnd({0, 2}, HasSubstr("without node 2"));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1});
  EXPECT_THAT(order(0), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (rank 2) takes no part")));
  ExpectNothing({1, 2});
}

// --- Gathering ---

TEST_F(BadLinksTest, AllThatWasSaidMeanwhileCounts) {
  ASSERT_NO_FATAL_FAILURE(Start(4, Policy(3, absl::Hours(1), /*gathering=*/absl::Hours(1))));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 1, 2, 3});
  Miss(2, 1, {1});
  Miss(3, 1, {1});
  ExpectNothing({0, 1, 2, 3});
  ReportAll({2, 3});
  Miss(0, 1, {1});
  Miss(1, 1, {0, 2, 3});
  ExpectNothing({0, 1, 2, 3});
  EXPECT_THAT(coordinator_->ViewWorld().left_out, ElementsAre(1));
  ReportAll({0});
  AwaitStart({0, 2, 3});
}

// Trainers of a daemon that has told of its links leave, and others lose their connections to it.
TEST_F(BadLinksTest, OtherEndsMeanwhileComeOfTheLinks) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2, absl::Hours(1), absl::Hours(1))));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Miss(2, 1, {1});
  EXPECT_OK(coordinator_->Step(
      2, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("rank 2: process 7 has left")}));
  ReportAll({2});
  EXPECT_OK(coordinator_->Step(
      0, EndEpoch{.model = "m", .epoch = 1, .why = absl::UnavailableError("connection to rank 2 lost")}));
  ReportAll({0});
  ExpectNothing({0, 1, 2});
  EXPECT_OK(coordinator_->Step(
      1, EndEpoch{.model = "m", .epoch = 1, .why = absl::UnavailableError("connection to rank 2 lost")}));
  ExpectNothing({0, 1, 2});
  ReportAll({1});
  AwaitStart({0, 1});
}

// It was summed before the link was cut.
TEST_F(BadLinksTest, ACommitMeanwhileShowsNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2, absl::Hours(1), absl::Hours(1))));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  Commit({1, 2}, 1, 1);
  Miss(1, 1, {2});
  Miss(2, 1, {1});
  Commit({0}, 1, 1);
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, ElementsAre("node 1 (d1) and node 2 (d2)"));
  EXPECT_OK(coordinator_->Step(0, EndEpoch{.model = "m", .epoch = 1, .why = absl::AbortedError("over")}));
  ReportAll({0, 1, 2}, 1);
  AwaitStart({0, 1});
}

TEST_F(BadLinksTest, ALostNodeMeanwhileIsTheReasonAndTheOtherLinksAreKept) {
  ASSERT_NO_FATAL_FAILURE(Start(4, Policy(2, absl::Hours(1), absl::Hours(1))));
  ReportAll({0, 1, 2, 3});
  AwaitStart({0, 1, 2, 3});
  Miss(2, 1, {1, 3});
  ReportAll({2});
  coordinator_->Leave(3);
  AwaitEnd({0, 1}, HasSubstr("node 3 (rank 3) lost"));
  EXPECT_THAT(coordinator_->ViewWorld().cut_links, ElementsAre("node 1 (d1) and node 2 (d2)"));
  EXPECT_THAT(coordinator_->ViewWorld().left_out, ElementsAre(2));
}

TEST_F(BadLinksTest, AThreadEndsTheEpochWhenTheTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(Start(3, Policy(2, absl::Hours(1), absl::Milliseconds(20))));
  ReportAll({0, 1, 2});
  AwaitStart({0, 1, 2});
  std::thread absences([&] { coordinator_->ServeAbsences(); });
  Miss(1, 1, {2});
  for (const int node : {0, 2}) AwaitEndOf(node, HasSubstr("without node 2"));
  ReportAll({0, 1, 2});
  for (const int node : {0, 1}) EXPECT_EQ(sinks_[node].Next().active, (Nodes{0, 1}));
  coordinator_->Stop();
  absences.join();
}

}  // namespace
}  // namespace paramshard::server
