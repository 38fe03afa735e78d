#include "server/world/decision_log.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/world/coordinator.h"
#include "server/world/coordinator_cluster.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/world/recording_listener.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

ClosedEpoch Begun(int64_t epoch, int64_t commit_number, const std::string& history = "aa",
                  std::vector<int> active = {0, 1}) {
  return {.model = "m",
          .history_id = history,
          .epoch = epoch,
          .commit_number = commit_number,
          .active = std::move(active),
          .device_counts = {2, 1}};
}

CommitDecision Decision(double square_sum) { return {.apply = true, .square_sum = square_sum}; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class DecisionLogTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DecisionLog>> Open(DiskCalls* calls) { return DecisionLog::Open(calls, dir_.path()); }
  // Returns the epochs that the next node 0 finds in the folder alone.
  std::vector<ClosedEpoch> Read(std::vector<ClosedEpoch> journals = {}) {
    absl::StatusOr<std::unique_ptr<DecisionLog>> log = Open(&calls_);
    EXPECT_OK(log.status());
    if (!log.ok()) return {};
    absl::StatusOr<std::vector<ClosedEpoch>> closed = (*log)->Reconcile(std::move(journals));
    EXPECT_OK(closed.status());
    return closed.value_or(std::vector<ClosedEpoch>());
  }
  std::string PathOf(const std::string& name) const { return dir_.path() + "/" + name; }

  const test::TemporaryDirectory dir_;
  QuickCalls calls_;
};

TEST_F(DecisionLogTest, TheNextOneFindsTheLastEpochAndItsLastDecision) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(7, 12)));
    for (int64_t commit = 13; commit < 20; ++commit) {
      ASSERT_OK(log->Decide("m", commit, Decision(static_cast<double>(commit)), {}));
    }
  }
  const std::vector<ClosedEpoch> closed = Read();
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].model, "m");
  EXPECT_EQ(closed[0].history_id, "aa");
  EXPECT_EQ(closed[0].epoch, 7);
  EXPECT_EQ(closed[0].commit_number, 19);
  EXPECT_EQ(closed[0].device_counts, (std::vector<int>{2, 1}));
  EXPECT_EQ(closed[0].active, (std::vector<int>{0, 1}));
  EXPECT_TRUE(closed[0].may_be_old);
  ASSERT_TRUE(closed[0].last_decision.has_value());
  EXPECT_EQ(closed[0].last_decision->commit_number, 19);
  EXPECT_EQ(closed[0].last_decision->epoch, 7);
  EXPECT_TRUE(closed[0].last_decision->decision.apply);
  EXPECT_EQ(closed[0].last_decision->decision.square_sum, 19);
}

TEST_F(DecisionLogTest, ALaterEpochKeepsTheDecisionBeforeItUnlessThatIsUndone) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
    ASSERT_OK(log->BeginEpoch(Begun(2, 1)));
  }
  std::vector<ClosedEpoch> closed = Read();
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].epoch, 2);
  ASSERT_TRUE(closed[0].last_decision.has_value());
  EXPECT_EQ(closed[0].last_decision->epoch, 1);
  for (const ClosedEpoch& begun : {Begun(3, 0), Begun(4, 1, "bb")}) {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(begun));
    log.reset();
    closed = Read();
    EXPECT_FALSE(closed[0].last_decision.has_value()) << begun.epoch;
  }
}

TEST_F(DecisionLogTest, AJournalCountsAndMendsTheFolder) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
  }
  // The process died before its journal had the decision, and no node was told.
  const std::vector<ClosedEpoch> closed = Read({Begun(1, 0)});
  ASSERT_THAT(closed, SizeIs(2));
  EXPECT_FALSE(closed[0].may_be_old) << "the journal comes first";
  EXPECT_EQ(closed[1].commit_number, 0);
  EXPECT_EQ(Read()[0].commit_number, 0);
  EXPECT_THAT(Read({Begun(1, 0, "bb")}), SizeIs(2)) << "each of its history";
  EXPECT_EQ(Read()[0].history_id, "aa");
}

TEST_F(DecisionLogTest, AJournalLearnsWhoWasInItsEpoch) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(3, 0, "aa", {0, 2})));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
  }
  EXPECT_EQ(Read({Begun(3, 0, "aa", {})})[0].active, (std::vector<int>{0, 2}));
  EXPECT_EQ(Read()[0].active, (std::vector<int>{0, 2})) << "what is mended says it too";
  EXPECT_EQ(Read({Begun(2, 0, "aa", {})})[0].active, std::vector<int>()) << "that of another epoch";
}

// A node that heals node 0 needs the client states of its ranks, of any size.
TEST_F(DecisionLogTest, WhatNode0sRanksHaveSentIsThereForTheNodeBehindIt) {
  const std::vector<std::string> sent = {std::string(60000, 'a'), "", "b"};
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0, "aa", {0, 2, 3})));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {"short"}));
    ASSERT_OK(log->Decide("m", 2, Decision(2), sent));
    ASSERT_OK(log->BeginEpoch(Begun(2, 2, "aa", {0, 1, 2, 3})));
  }
  ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
  const auto ask = [&](int node, const CommitQuery& query) { return log->SentByNode0(query, node); };
  const CommitQuery query{.model = "m", .history_id = "aa", .epoch = 1, .commit_number = 2};
  EXPECT_EQ(ask(2, query), sent);
  EXPECT_EQ(ask(1, query), std::nullopt) << "it was not in that epoch";
  EXPECT_EQ(ask(3, query), std::nullopt) << "it keeps those of another node";
  EXPECT_EQ(ask(2, {.model = "m", .history_id = "aa", .epoch = 1, .commit_number = 1}), std::nullopt);
  EXPECT_EQ(ask(2, {.model = "m", .history_id = "bb", .epoch = 1, .commit_number = 2}), std::nullopt);
  EXPECT_EQ(ask(2, {.model = "n", .history_id = "aa", .epoch = 1, .commit_number = 2}), std::nullopt);
}

TEST_F(DecisionLogTest, AModelThatIsForgottenLeavesNothing) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    log->Forget("m");
    log->Forget("other");
  }
  EXPECT_THAT(Read(), SizeIs(0));
}

TEST_F(DecisionLogTest, OneProcessHasTheFolder) {
  ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
  EXPECT_THAT(Open(&calls_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only one node 0 may use a folder")));
  log.reset();
  EXPECT_OK(Open(&calls_).status());
}

TEST_F(DecisionLogTest, AFolderThatOthersMayWriteToIsRefused) {
  fs::permissions(dir_.path(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(DecisionLogTest, AFileWithoutAWholeCopyIsNamed) {
  std::ofstream(PathOf("m.decisions")) << std::string(32768, 'x');
  EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m.decisions")));
}

// The remaining copy of a truncated file may be the older one.
TEST_F(DecisionLogTest, AFileOfAnotherSizeIsNamed) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
  }
  for (const int64_t size_bytes : {20000, 16384, 0}) {
    fs::resize_file(PathOf("m.decisions"), size_bytes);
    EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kDataLoss,
                                                 AllOf(HasSubstr("m.decisions"), HasSubstr(absl::StrCat(size_bytes)))));
  }
}

TEST_F(DecisionLogTest, AFileFromBeforeIsWrittenToInPlace) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
  }
  FaultyCalls counting;
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&counting));
    const int64_t before = counting.count();
    ASSERT_OK(log->BeginEpoch(Begun(2, 1)));
    EXPECT_EQ(counting.count() - before, 3) << "a write, that it is on the disk, and the mark that says so";
  }
  const std::vector<ClosedEpoch> closed = Read();
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].epoch, 2);
}

TEST_F(DecisionLogTest, WhatCouldNotBeMadeTakesNoRoom) {
  FaultyCalls counting;
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&counting));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
  }
  const int64_t calls = counting.count();
  for (int64_t at = 1; at <= calls; ++at) {
    fs::remove(PathOf("m.decisions"));
    FaultyCalls full(Fault::kDiskFull, at);
    absl::StatusOr<std::unique_ptr<DecisionLog>> log = Open(&full);
    if (log.ok()) (*log)->BeginEpoch(Begun(1, 0)).IgnoreError();
    EXPECT_FALSE(fs::exists(PathOf("m.decisions.new"))) << at;
  }
}

TEST_F(DecisionLogTest, AFileOfAnotherModelIsNamed) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
  }
  fs::rename(PathOf("m.decisions"), PathOf("n.decisions"));
  EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("n.decisions")));
}

// A crash in the middle of a write leaves a part of the copy, and no mark of it: the one before counts.
TEST_F(DecisionLogTest, ATornCopyLeavesTheOneBefore) {
  const std::string path = PathOf("m.decisions");
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
  }
  const std::string before = ReadFile(path);
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->Decide("m", 2, Decision(2), {}));
  }
  const std::string after = ReadFile(path);
  // The third write goes over the copy that the first one had.
  const size_t last = before.size() / 2;
  uint32_t payload_bytes = 0;
  std::memcpy(&payload_bytes, after.data() + last, sizeof(payload_bytes));
  ASSERT_GT(payload_bytes, 0u);
  for (size_t written = 0; written < 8 + payload_bytes; ++written) {
    std::string torn = before;
    torn.replace(last, written, after, last, written);
    std::ofstream(path, std::ios::binary) << torn;
    const std::vector<ClosedEpoch> closed = Read();
    ASSERT_THAT(closed, SizeIs(1));
    EXPECT_EQ(closed[0].commit_number, 1) << written;
  }
}

// The disk has said that the copy is there, and others may have been told.
TEST_F(DecisionLogTest, ADamagedCopyThatWasWrittenWholeIsNamed) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
    ASSERT_OK(log->Decide("m", 2, Decision(2), {}));
  }
  const std::string path = PathOf("m.decisions");
  const std::string bytes = ReadFile(path);
  // The third write: the copy that the first one had.
  const size_t last = bytes.size() / 2;
  uint32_t payload_bytes = 0;
  std::memcpy(&payload_bytes, bytes.data() + last, sizeof(payload_bytes));
  ASSERT_GT(payload_bytes, 0u);
  for (size_t at = 0; at < 8 + payload_bytes; ++at) {
    std::string torn = bytes;
    torn[last + at] = static_cast<char>(torn[last + at] ^ 1);
    std::ofstream(path, std::ios::binary) << torn;
    EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m.decisions"))) << at;
    EXPECT_EQ(ReadFile(path), torn) << "it is a person's to look at";
  }
}

// Neither the older copy nor the mark is needed to read the last one.
TEST_F(DecisionLogTest, DamageElsewhereLeavesTheLastCopy) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
    ASSERT_OK(log->Decide("m", 2, Decision(2), {}));
  }
  const std::string path = PathOf("m.decisions");
  const std::string bytes = ReadFile(path);
  for (const size_t at : {size_t{0}, size_t{4}, size_t{20}, bytes.size() - 16, bytes.size() - 8}) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    const std::vector<ClosedEpoch> closed = Read();
    ASSERT_THAT(closed, SizeIs(1));
    EXPECT_EQ(closed[0].commit_number, 2) << at;
    // Reading the file has marked the copy.
    damaged = ReadFile(path);
    damaged[bytes.size() / 2 + 20] = static_cast<char>(damaged[bytes.size() / 2 + 20] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_THAT(Open(&calls_).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m.decisions"))) << at;
  }
}

// Files of an older version have none.
TEST_F(DecisionLogTest, WithoutAMarkADamagedCopyCountsAsTorn) {
  {
    ASSERT_OK_AND_ASSIGN(auto log, Open(&calls_));
    ASSERT_OK(log->BeginEpoch(Begun(1, 0)));
    ASSERT_OK(log->Decide("m", 1, Decision(1), {}));
  }
  const std::string path = PathOf("m.decisions");
  std::string bytes = ReadFile(path);
  bytes.replace(bytes.size() - 16, 16, 16, '\0');
  bytes[20] = static_cast<char>(bytes[20] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(Read()[0].commit_number, 0);
}

struct Answered {
  int64_t begun = 0;    // epochs
  int64_t decided = 0;  // commits
  bool failed = false;
};

// Goes on behind what fails, as node 0 does: with the next epoch, from the last commit that was decided.
Answered Work(DecisionLog& log) {
  Answered answered;
  for (int64_t epoch = 1; epoch < 4; ++epoch) {
    if (!log.BeginEpoch(Begun(epoch, answered.decided)).ok()) {
      answered.failed = true;
      continue;
    }
    answered.begun = epoch;
    for (int i = 0; i < 3; ++i) {
      const int64_t commit = answered.decided + 1;
      if (!log.Decide("m", commit, Decision(static_cast<double>(commit)), {}).ok()) {
        answered.failed = true;
        break;
      }
      answered.decided = commit;
    }
  }
  return answered;
}

// Fails every call on the disk in turn: decisions that were told are found, the failed one is not if later calls
// succeed.
TEST_F(DecisionLogTest, WhatWasToldIsThereWhateverCallFails) {
  for (const Fault fault :
       {Fault::kIoError, Fault::kDiskFull, Fault::kShortWrite, Fault::kDoneButFailed, Fault::kKill}) {
    int failures = 0;
    for (int64_t at = 1;; ++at) {
      SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << " at " << at);
      fs::remove(PathOf("m.decisions"));
      FaultyCalls faulty(fault, at);
      Answered answered;
      {
        absl::StatusOr<std::unique_ptr<DecisionLog>> log = Open(&faulty);
        if (!log.ok()) continue;
        answered = Work(**log);
      }
      if (faulty.count() < at) break;
      failures += answered.failed ? 1 : 0;
      const std::vector<ClosedEpoch> closed = Read();
      if (answered.begun == 0 && closed.empty()) continue;
      ASSERT_THAT(closed, SizeIs(1));
      const int64_t last = closed[0].last_decision.has_value() ? closed[0].last_decision->commit_number : 0;
      if (fault == Fault::kKill) {
        // The last call before the kill may have been told or not.
        EXPECT_GE(closed[0].epoch, answered.begun);
        EXPECT_THAT(last - answered.decided, testing::AnyOf(0, 1));
      } else {
        EXPECT_EQ(closed[0].epoch, answered.begun);
        EXPECT_EQ(last, answered.decided);
        EXPECT_EQ(closed[0].commit_number, answered.decided);
      }
    }
    EXPECT_GT(failures, 5) << static_cast<int>(fault);
  }
}

// Two nodes, which keep no journals: what they hear is what the folder says to the next node 0.
class LoggedCoordinatorTest : public DecisionLogTest {
 protected:
  void Start(DiskCalls* calls) {
    ASSERT_OK_AND_ASSIGN(log_, Open(calls));
    coordinator_ = std::make_unique<Coordinator>(Coordinator::Options{.nodes = 2, .log = log_.get()});
    for (int node = 0; node < 2; ++node) ASSERT_OK(coordinator_->Join(node, 1, &sinks_[node]));
    for (int node = 0; node < 2; ++node) coordinator_->Step(node, MakeReport({node}, 0, 0, 1, 2)).IgnoreError();
  }
  // A test stops before the calls on the disk that it has given are destroyed.
  void Stop() {
    coordinator_.reset();
    log_.reset();
  }
  absl::StatusOr<CommitDecision> VoteOfBoth(int64_t epoch, int64_t commit) {
    EXPECT_FALSE(coordinator_->Vote(1, MakeVote(epoch, commit, {{1, 0.5, 0}}), absl::ZeroDuration()).ok());
    return coordinator_->Vote(0, MakeVote(epoch, commit, {{0, 0.25, 0}}), absl::ZeroDuration());
  }

  RecordingListener sinks_[2];
  std::unique_ptr<DecisionLog> log_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(LoggedCoordinatorTest, EpochsAndDecisionsAreThereBeforeTheyAreTold) {
  ASSERT_NO_FATAL_FAILURE(Start(&calls_));
  const ReceivedMessage message = sinks_[1].Next();
  ASSERT_TRUE(message.start) << message.why;
  ASSERT_OK(VoteOfBoth(message.epoch, 1).status());
  Stop();
  const std::vector<ClosedEpoch> closed = Read();
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_EQ(closed[0].epoch, message.epoch);
  ASSERT_TRUE(closed[0].last_decision.has_value());
  EXPECT_EQ(closed[0].last_decision->commit_number, 1);
  EXPECT_EQ(closed[0].last_decision->decision.square_sum, 0.75);
}

TEST_F(LoggedCoordinatorTest, ADiskThatRefusesLetsNoEpochStart) {
  FaultyCalls calls;
  ASSERT_NO_FATAL_FAILURE(Start(&calls));
  ASSERT_TRUE(sinks_[1].Next().start);
  Stop();
  for (RecordingListener& sink : sinks_) {
    while (!sink.empty()) sink.Next();
  }
  fs::remove(PathOf("m.decisions"));
  FaultyCalls full(Fault::kDiskFull, calls.count() - 1);
  ASSERT_NO_FATAL_FAILURE(Start(&full));
  const ReceivedMessage message = sinks_[1].Next();
  EXPECT_TRUE(message.refused);
  EXPECT_THAT(message.why, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--state-dir")));
  Stop();
}

TEST_F(LoggedCoordinatorTest, ADecisionThatIsNotWrittenIsNone) {
  // The calls of the start, and the two of a decision.
  FaultyCalls counting;
  ASSERT_NO_FATAL_FAILURE(Start(&counting));
  Stop();
  fs::remove(PathOf("m.decisions"));
  for (RecordingListener& sink : sinks_) {
    while (!sink.empty()) sink.Next();
  }
  FaultyCalls faulty(Fault::kIoError, counting.count() + 2);
  ASSERT_NO_FATAL_FAILURE(Start(&faulty));
  const ReceivedMessage message = sinks_[1].Next();
  ASSERT_TRUE(message.start) << message.why;
  EXPECT_FALSE(VoteOfBoth(message.epoch, 1).ok());
  EXPECT_FALSE(coordinator_->QueryCommit(1, {.model = "m", .epoch = message.epoch, .commit_number = 1}).ok());
  Stop();
  EXPECT_FALSE(Read()[0].last_decision.has_value());
}

// Disk whose flushes a test can block.
class HeldCalls final : public QuickCalls {
 public:
  int Fdatasync(int) override {
    absl::MutexLock lock(&mu_);
    is_held_ = holds_;
    mu_.Await(absl::Condition(
        +[](bool* holds) { return !*holds; }, &holds_));
    is_held_ = false;
    return 0;
  }
  void Hold() { Set(true); }
  void Release() { Set(false); }
  // Waits until a flush stands still.
  void AwaitHeld() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&is_held_));
  }

 private:
  void Set(bool holds) {
    absl::MutexLock lock(&mu_);
    holds_ = holds;
  }

  absl::Mutex mu_;
  bool holds_ ABSL_GUARDED_BY(mu_) = false;
  bool is_held_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(LoggedCoordinatorTest, QuestionsAreAnsweredWhileADecisionIsWritten) {
  HeldCalls calls;
  ASSERT_NO_FATAL_FAILURE(Start(&calls));
  const ReceivedMessage message = sinks_[1].Next();
  ASSERT_TRUE(message.start) << message.why;
  EXPECT_FALSE(coordinator_->Vote(1, MakeVote(message.epoch, 1, {{1, 0.5, 0}}), absl::ZeroDuration()).ok());
  calls.Hold();
  auto decision = std::async(std::launch::async, [&] {
    return coordinator_->Vote(0, MakeVote(message.epoch, 1, {{0, 0.25, 0}}), absl::InfiniteDuration());
  });
  calls.AwaitHeld();
  EXPECT_THAT(coordinator_->ViewWorld().absent, testing::IsEmpty());
  EXPECT_THAT(coordinator_->device_counts(), testing::ElementsAre(1, 1));
  EXPECT_EQ(coordinator_->healing_donor("m"), std::nullopt);
  // No node hears of the decision before it is written, and the end of the epoch waits.
  auto lost = std::async(std::launch::async, [&] { coordinator_->Leave(1); });
  EXPECT_EQ(decision.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(lost.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_TRUE(sinks_[0].empty() || sinks_[0].Next().start);
  calls.Release();
  EXPECT_OK(decision.get().status());
  lost.get();
  EXPECT_OK(coordinator_->QueryCommit(1, {.model = "m", .epoch = message.epoch, .commit_number = 1}).status());
  Stop();
}

// Models report with their locks held.
TEST_F(DecisionLogTest, ACallOfNode0DoesNotWaitForTheDisk) {
  HeldCalls calls;
  ASSERT_OK_AND_ASSIGN(auto log, Open(&calls));
  ASSERT_OK_AND_ASSIGN(CoordinatorNode node, MakeCoordinatorCluster({.nodes = 1, .devices = 1, .log = log.get()}));
  RecordingListener listener;
  node.cluster->SetListener(&listener);
  calls.Hold();
  node.cluster->Send(MakeReport({0}, 0, 0, 1, 1)).IgnoreError();
  calls.AwaitHeld();
  EXPECT_TRUE(node.cluster->ViewWorld().has_value());
  EXPECT_TRUE(listener.empty());
  calls.Release();
  EXPECT_TRUE(listener.Next().start);
  node.cluster->SetListener(nullptr);
}

}  // namespace
}  // namespace paramshard::server
