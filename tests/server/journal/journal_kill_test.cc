// A process that is killed while it writes, again and again: each one goes on from what the one before it has left.

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "server/journal/journal.h"
#include "server/journal/recovery.h"
#include "tests/server/journal/training.h"
#include "tests/support/child_process.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr int kKills = 300;
// The board's number that counts the calls of a child.
constexpr int kCalls = 0;

// The server: recovers, and trains until it is killed.
class Server {
 public:
  // `training` is a state that this server's is not before.
  Server(absl::Span<uint8_t> memory, test::Board& board, const Training& training)
      : memory_(memory), board_(board), training_(training) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Recover());
    training_.BeginEpoch(training_.epoch().epoch + 1);
    RETURN_IF_ERROR(journal_->BeginEpoch(training_.epoch().epoch, training_.epoch().history));
    while (true) RETURN_IF_ERROR(Commit());
  }

 private:
  int64_t next() const { return training_.numbers().commit_number + 1; }
  void Count() { test::Reach(board_, kCalls, ++calls_); }

  absl::Status Recover() {
    ASSIGN_OR_RETURN(const RecoveryPlan plan, PlanRecovery(memory_));
    if (!plan.identity.has_value()) return Create();
    ASSIGN_OR_RETURN(journal_, Journal::Adopt(memory_));
    while (training_.numbers().commit_number < plan.numbers->commit_number) training_.Answer();
    training_.BeginEpoch(plan.epoch->epoch);
    switch (plan.action) {
      case RecoveryAction::kServe:
        return plan.prepared.has_value() ? journal_->Withdraw() : absl::OkStatus();
      case RecoveryAction::kRedoApply:
        for (size_t rank = 0; rank < plan.redo.size(); ++rank) Apply(static_cast<int>(rank), plan.redo[rank].done);
        return Answer();
      case RecoveryAction::kAnswerSkip:
        return Answer();
      default:
        return absl::InternalError(absl::StrCat(RecoveryActionName(plan.action), ": ", plan.loss));
    }
  }

  absl::Status Create() {
    std::fill(memory_.begin(), memory_.end(), 0);
    ASSIGN_OR_RETURN(journal_, Journal::Create(memory_, training_.identity()));
    Count();
    return journal_->SetUsable(training_.epoch(), training_.numbers());
  }

  absl::Status Commit() {
    RETURN_IF_ERROR(journal_->Prepare(training_.Prepared(next())));
    Count();
    const DecidedCommit decided = training_.Decided(next());
    RETURN_IF_ERROR(journal_->Decide(decided));
    Count();
    for (size_t rank = 0; decided.apply && rank < training_.identity().ranks.size(); ++rank) {
      Apply(static_cast<int>(rank), {});
    }
    return Answer();
  }

  void Apply(int rank, const std::array<int, kBandLanes>& done) {
    for (const Training::Band& band : training_.Bands(rank)) {
      if (band.count <= done[band.lane]) continue;
      journal_->MarkBegun(rank, band.lane, band.count);
      journal_->MarkDone(rank, band.lane, band.count);
      Count();
    }
  }

  absl::Status Answer() {
    training_.Answer();
    RETURN_IF_ERROR(journal_->Answer(training_.Answered()));
    Count();
    return absl::OkStatus();
  }

  const absl::Span<uint8_t> memory_;
  test::Board& board_;
  Training training_;
  std::unique_ptr<Journal> journal_;
  uint32_t calls_ = 0;
};

// Knows the state after every commit.
class Oracle {
 public:
  // Fails the test unless the plan leads to a state of the training.
  void Check(const RecoveryPlan& plan) {
    if (plan.action == RecoveryAction::kNotBegun || plan.action == RecoveryAction::kDrop) {
      ASSERT_EQ(training_.numbers().commit_number, 0);
      return;
    }
    ASSERT_NE(plan.action, RecoveryAction::kDataLoss) << plan.loss;
    ASSERT_NE(plan.action, RecoveryAction::kQueryNode0);
    ASSERT_NE(plan.action, RecoveryAction::kRedoChange);
    const int64_t answered = plan.numbers->commit_number;
    ASSERT_GE(answered, training_.numbers().commit_number);
    while (training_.numbers().commit_number < answered) training_.Answer();
    EXPECT_EQ(plan.identity, training_.identity());
    EXPECT_EQ(plan.numbers, training_.numbers());
    EXPECT_GE(plan.epoch->epoch, training_.epoch().epoch);
    training_.BeginEpoch(plan.epoch->epoch);
    EXPECT_EQ(plan.epoch, training_.epoch());
    CheckNext(plan, answered + 1);
  }
  const Training& training() const { return training_; }
  int64_t commits() const { return training_.numbers().commit_number; }
  int applies() const { return applies_; }

 private:
  void CheckNext(const RecoveryPlan& plan, int64_t number) {
    EXPECT_TRUE(!plan.prepared.has_value() || plan.prepared == training_.Prepared(number));
    if (!plan.decided.has_value()) return;
    EXPECT_TRUE(plan.prepared.has_value());
    EXPECT_EQ(plan.decided, training_.Decided(number));
    EXPECT_EQ(plan.action == RecoveryAction::kRedoApply, plan.decided->apply);
    applies_ += plan.decided->apply;
    for (size_t rank = 0; rank < plan.redo.size(); ++rank) CheckRedo(plan.redo[rank], static_cast<int>(rank));
  }
  // This server carries bands out one behind the other.
  void CheckRedo(const RankRedo& redo, int rank) const {
    const int bands = static_cast<int>(training_.Bands(rank).size());
    EXPECT_EQ(redo.done[0], (redo.next + 1) / 2);
    EXPECT_EQ(redo.done[1], redo.next / 2);
    EXPECT_LE(redo.next, bands);
    EXPECT_EQ(redo.complete, redo.next == bands);
    EXPECT_EQ(redo.forward, training_.numbers().positions[rank] == 0);
  }

  Training training_{BandedIdentity()};
  int applies_ = 0;
};

TEST(JournalKillTest, WhateverAKilledServerWasAtTheNextOneKnows) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  std::mt19937_64 random(seed);
  ASSERT_OK_AND_ASSIGN(const int64_t size_bytes, Journal::SizeOf(BandedIdentity()));
  ASSERT_OK_AND_ASSIGN(const Memory memory, Memory::Allocate("journal-kill-test", size_bytes, Sharing::kKept));
  const absl::Span<uint8_t> bytes(memory.data(), memory.size_bytes());
  Oracle oracle;
  for (int kill = 0; kill < kKills && !testing::Test::HasFailure(); ++kill) {
    test::ChildProcess child =
        test::ChildProcess::Run([&](test::Board& board) { return Server(bytes, board, oracle.training()).Run(); });
    // Some die as soon as they begin.
    const auto calls = static_cast<uint32_t>(random() % 30);
    ASSERT_TRUE(calls == 0 || child.AwaitNumber(kCalls, calls)) << child.board().text;
    for (uint64_t spins = random() % 4096; spins > 0; --spins) std::atomic_signal_fence(std::memory_order_seq_cst);
    child.Signal(SIGKILL);
    ASSERT_THAT(child.Await(), StatusIs(absl::StatusCode::kUnknown)) << child.board().text;
    absl::StatusOr<RecoveryPlan> plan = PlanRecovery(bytes);
    ASSERT_OK(plan);
    oracle.Check(*plan);
  }
  EXPECT_GT(oracle.commits(), kKills / 10);
  std::printf("%lld commits, %d kills in an apply\n", static_cast<long long>(oracle.commits()), oracle.applies());
}

}  // namespace
}  // namespace paramshard::server
