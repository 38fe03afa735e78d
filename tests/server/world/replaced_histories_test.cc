// Restores while a node is away: the others go on, and what it comes back with is nothing beside what was restored,
// also for the next node 0.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/world/coordinator.h"
#include "server/world/decision_log.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr int kNodes = 3;
constexpr int64_t kSaved = 7;
constexpr absl::uint128 kFirst = absl::MakeUint128(1, 1);
constexpr absl::uint128 kSecond = absl::MakeUint128(2, 2);

std::string HistoryOf(absl::uint128 restore) {
  return absl::StrFormat("%016x%016x", absl::Uint128High64(restore), absl::Uint128Low64(restore));
}

// A node's only rank has its number.
ModelReport State(int node, const std::string& history, int64_t commit_number) {
  ModelReport report = MakeReport({node}, commit_number, commit_number, 1, /*shard_size=*/1);
  report.history_id = history;
  report.lineage = "of " + history;
  return report;
}

ModelReport Restored(int node, absl::uint128 restore) {
  ModelReport report = State(node, HistoryOf(restore), kSaved);
  report.untouched = true;
  return report;
}

ModelReport Unattached(ModelReport report) {
  report.attached_ranks.clear();
  return report;
}

class ReplacedHistoriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Begin(/*closed=*/{});
    for (int node = 0; node < kNodes; ++node) Join(node);
    for (int node = 0; node < kNodes; ++node) coordinator_->Step(node, State(node, "h", 11)).IgnoreError();
    AwaitStart({0, 1, 2});
    Commit(1, 12, {0, 1, 2});
    coordinator_->Leave(2);
    for (const int node : {0, 1}) EXPECT_FALSE(sinks_[node].Next().start);
    for (const int node : {0, 1}) coordinator_->Step(node, Unattached(State(node, "h", 12))).IgnoreError();
  }
  // A node 0 with what the one before has in its folder, and in its journals.
  void Begin(std::vector<ClosedEpoch> journals) {
    coordinator_.reset();
    log_.reset();
    ASSERT_OK_AND_ASSIGN(log_, DecisionLog::Open(&calls_, dir_.path()));
    ASSERT_OK_AND_ASSIGN(std::vector<ClosedEpoch> closed, log_->Reconcile(std::move(journals)));
    coordinator_ =
        std::make_unique<Coordinator>(Coordinator::Options{.nodes = kNodes,
                                                           .closed = std::move(closed),
                                                           .log = log_.get(),
                                                           .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()},
                                                           .device_counts = {1, 1, 1}});
  }
  void Join(int node) { ASSERT_OK(coordinator_->Join(node, 1, &sinks_[node])); }
  absl::Status Tell(RestoreMessage message) { return coordinator_->Step(0, message); }
  absl::Status Order(absl::uint128 id) {
    return Tell({.model = "m", .what = RestoreOrder{.id = id, .folder = "x", .step = kSaved}});
  }
  // Restores on the present nodes, which have no trainers.
  void Restore(absl::uint128 id, const std::vector<int>& nodes) {
    ASSERT_OK(Order(id));
    EXPECT_EQ(coordinator_->restored_nodes("m", id), nodes);
    ASSERT_OK(Tell({.model = "m", .what = RestoreGo{.id = id}}));
    ASSERT_OK(Tell({.model = "m", .what = RestoreEnd{.id = id}}));
    for (const int node : nodes) {
      for (int i = 0; node != 0 && i < 3; ++i) EXPECT_TRUE(sinks_[node].Next().restore.has_value());
      EXPECT_OK(coordinator_->Step(node, Unattached(Restored(node, id))));
    }
  }
  ReceivedMessage AwaitStart(const std::vector<int>& nodes) {
    ReceivedMessage first;
    for (const int node : nodes) {
      const ReceivedMessage message = sinks_[node].Next();
      EXPECT_TRUE(message.start) << message.why;
      EXPECT_EQ(message.active, nodes);
      first = message;
    }
    return first;
  }
  void Commit(int64_t epoch, int64_t commit_number, const std::vector<int>& nodes) {
    for (const int node : nodes) {
      const auto decision = coordinator_->Vote(node, MakeVote(epoch, commit_number, {{node, 0, 0}}), kNow);
      if (node == nodes.back()) EXPECT_OK(decision.status());
    }
  }

  const test::TemporaryDirectory dir_;
  QuickCalls calls_;
  std::unique_ptr<DecisionLog> log_;
  RecordingListener sinks_[kNodes];
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(ReplacedHistoriesTest, TheOthersGoOnAndTheOneThatIsBackIsHealedThoughItCountsFurther) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  for (const int node : {0, 1}) coordinator_->Step(node, Restored(node, kFirst)).IgnoreError();
  const ReceivedMessage start = AwaitStart({0, 1});
  EXPECT_EQ(start.history_id, HistoryOf(kFirst));
  Join(2);
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  EXPECT_TRUE(sinks_[2].empty()) << "its trainer waits";
  Commit(start.epoch, kSaved + 1, {0, 1});
  for (const int node : {0, 1}) {
    EXPECT_THAT(sinks_[node].Next().why.message(), HasSubstr("node 2 (rank 2) is back"));
    EXPECT_OK(coordinator_->Step(node, State(node, HistoryOf(kFirst), kSaved + 1)));
  }
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(GivesUp(2, 0, "h", 12)));
}

TEST_F(ReplacedHistoriesTest, TwoInARowReplaceBoth) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  ASSERT_NO_FATAL_FAILURE(Restore(kSecond, {0, 1}));
  Join(2);
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  for (const int node : {0, 1}) coordinator_->Step(node, Restored(node, kSecond)).IgnoreError();
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(GivesUp(2, 0, "h", 12)));
}

TEST_F(ReplacedHistoriesTest, TheNextNode0KnowsIt) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  ASSERT_NO_FATAL_FAILURE(
      Begin({{.model = "m", .history_id = HistoryOf(kFirst), .epoch = 1, .commit_number = kSaved}}));
  for (int node = 0; node < kNodes; ++node) Join(node);
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  for (const int node : {0, 1}) coordinator_->Step(node, Restored(node, kFirst)).IgnoreError();
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(GivesUp(2, 0, "h", 12)));
  // The next node 0 reads what the epoch has written.
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  for (int node = 0; node < kNodes; ++node) Join(node);
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  for (const int node : {0, 1}) coordinator_->Step(node, State(node, HistoryOf(kFirst), kSaved + 1)).IgnoreError();
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(GivesUp(2, 0, "h", 12)));
}

TEST_F(ReplacedHistoriesTest, ANode0WithoutItsMemoryBelievesWhoWasRestored) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  for (int node = 0; node < kNodes; ++node) Join(node);
  ModelReport lost = State(0, "", 0);
  lost.lost = absl::DataLossError("gone");
  EXPECT_OK(coordinator_->Step(0, lost));
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  EXPECT_OK(coordinator_->Step(1, Restored(1, kFirst)));
  EXPECT_THAT(AwaitStart({0, 1, 2}).healings, ElementsAre(Healing{.receiver = 0, .donor = 1}, GivesUp(2, 1, "h", 12)));
}

// The restored nodes may be the absent ones.
TEST_F(ReplacedHistoriesTest, TheOnlyOneThatHasAStateIsNotBelieved) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  for (const int node : {0, 2}) Join(node);
  ModelReport lost = State(0, "", 0);
  lost.lost = absl::DataLossError("gone");
  EXPECT_OK(coordinator_->Step(0, lost));
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  for (RecordingListener& sink : sinks_) {
    while (!sink.empty()) EXPECT_FALSE(sink.Next().start);
  }
}

// A person is to judge what node 0 has never heard of.
TEST_F(ReplacedHistoriesTest, AnotherStateThanAReplacedOneIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Restore(kFirst, {0, 1}));
  for (const int node : {0, 1}) coordinator_->Step(node, Restored(node, kFirst)).IgnoreError();
  AwaitStart({0, 1});
  Join(2);
  EXPECT_OK(coordinator_->Step(2, State(2, "imported", 12)));
  EXPECT_THAT(sinks_[2].Next().why.message(), HasSubstr("got commit 12 of history imported"));
}

// A restore that came to nothing: it was written down before anything changed.
TEST_F(ReplacedHistoriesTest, WhatIsStillThereGoesOn) {
  ASSERT_OK(Order(kFirst));
  ASSERT_OK(Tell({.model = "m", .what = RestoreGo{.id = kFirst}}));
  ASSERT_NO_FATAL_FAILURE(Begin({{.model = "m", .history_id = "h", .epoch = 1, .commit_number = 12}}));
  for (int node = 0; node < kNodes; ++node) Join(node);
  for (RecordingListener& sink : sinks_) {
    while (!sink.empty()) sink.Next();
  }
  ModelReport lost = State(1, "", 0);
  lost.lost = absl::DataLossError("a restore broke off in the middle");
  EXPECT_OK(coordinator_->Step(0, State(0, "h", 12)));
  EXPECT_OK(coordinator_->Step(1, lost));
  EXPECT_OK(coordinator_->Step(2, State(2, "h", 12)));
  const ReceivedMessage start = AwaitStart({0, 1, 2});
  EXPECT_EQ(start.history_id, "h");
  EXPECT_THAT(start.healings, ElementsAre(Healing{.receiver = 1, .donor = 2}));
}

TEST_F(ReplacedHistoriesTest, AllAreNeededToCreateAndToRollBack) {
  const auto is_refused = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (rank 2) is not here"));
  EXPECT_THAT(Tell({.model = "m", .what = RestoreOrder{.id = kFirst, .creates = true}}), is_refused);
  EXPECT_THAT(Tell({.model = "m", .what = RestoreOrder{.id = kFirst, .rollback_why = "gone"}}), is_refused);
  coordinator_->Leave(1);
  EXPECT_THAT(Order(kFirst), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is not here")))
      << "fewer than may go on";
}

TEST_F(ReplacedHistoriesTest, WithoutAFolderAllAreNeeded) {
  RecordingListener sinks[kNodes];
  Coordinator coordinator(
      Coordinator::Options{.nodes = kNodes, .quorum = {.min_nodes = 2, .timeout = absl::ZeroDuration()}});
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(coordinator.Join(node, 1, &sinks[node]));
  for (int node = 0; node < kNodes; ++node) coordinator.Step(node, Unattached(State(node, "h", 12))).IgnoreError();
  coordinator.Leave(2);
  EXPECT_THAT(coordinator.Step(0, RestoreMessage{.model = "m", .what = RestoreOrder{.id = kFirst}}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2 (rank 2) is not here")));
}

TEST_F(ReplacedHistoriesTest, ANodeThatHasNoPartInTheRestoreIsNoneOfItsLosses) {
  ASSERT_OK(Order(kFirst));
  Join(2);
  while (!sinks_[0].empty()) sinks_[0].Next();
  coordinator_->Leave(2);
  EXPECT_TRUE(sinks_[0].empty());
  coordinator_->Leave(1);
  EXPECT_TRUE(sinks_[0].Next().restore.has_value());
}

}  // namespace
}  // namespace paramshard::server
