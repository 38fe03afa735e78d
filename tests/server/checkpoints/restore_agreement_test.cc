#include "server/checkpoints/restore_agreement.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/checkpoint/reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/server/checkpoints/shard_world.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::Reader;
using checkpoint::SavedModel;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(10);

// Stands still until a test moves it, and counts who looks.
class CountedClock final : public Clock {
 public:
  SteadyTime Now() const override {
    absl::MutexLock lock(&mu_);
    ++looks_;
    return now_;
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += absl::ToChronoNanoseconds(by);
  }
  // Returns when somebody has looked and has done what follows from it: he looks again then.
  void AdvanceAndAwaitLooks(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += absl::ToChronoNanoseconds(by);
    const int64_t enough = looks_ + 2;
    const auto looked = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return looks_ >= enough; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&looked), absl::Seconds(30)));
  }

 private:
  mutable absl::Mutex mu_;
  mutable int64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
  SteadyTime now_ ABSL_GUARDED_BY(mu_) = SteadyNow();
};

class RestoreAgreementTest : public RestoreTest {
 protected:
  RestoreAgreementTest() : saved_(checkpoint::TinySpec(), 4), world_(saved_.spec(), {1, 1}) {}
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(Reader reader, Reader::Open(Write(saved_, {2, 2}), {}));
    reader_ = std::make_unique<Reader>(std::move(reader));
    ASSERT_OK_AND_ASSIGN(loader_, Prepare(*reader_, world_));
  }
  void ExpectNothingLoaded() const {
    EXPECT_FALSE(loader_->torn());
    EXPECT_EQ(loader_->progress().done_bytes, 0);
  }
  // Options of node 0.
  static RestoreAgreement::Options Leading() {
    return {.role = RestoreAgreement::Role::kLeader, .model = "tiny", .order = {.id = 7}};
  }
  // A message of another daemon.
  static RestoreMessage Failed(const absl::Status& why, int node = 1) {
    return {.model = "tiny", .what = RestoreReport{.id = 7, .node = node, .status = why}};
  }

  const SavedModel saved_;
  const ShardWorld world_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<CheckpointLoader> loader_;
};

TEST_F(RestoreAgreementTest, LoadsAllRows) {
  RestoreAgreement agreement(Leading());
  EXPECT_OK(agreement.Load(*loader_));
  EXPECT_EQ(loader_->progress().done_bytes, loader_->progress().all_bytes);
}

TEST_F(RestoreAgreementTest, AFailureElsewhereStopsLoadingWithTheFirstReason) {
  RestoreAgreement* running = nullptr;
  RestoreAgreement::Options options = Leading();
  options.at = [&](RestoreAgreement::Point) {
    running->OnMessage(Failed(absl::AbortedError("no more")));
    running->OnMessage(Failed(absl::InternalError("later"), 0));
  };
  RestoreAgreement agreement(std::move(options));
  running = &agreement;
  EXPECT_THAT(agreement.Load(*loader_), StatusIs(absl::StatusCode::kAborted, "node 1: no more"));
  ExpectNothingLoaded();
}

TEST_F(RestoreAgreementTest, NothingIsLoadedAfterAFailure) {
  RestoreAgreement agreement(Leading());
  agreement.OnMessage(Failed(absl::AbortedError("no more")));
  EXPECT_THAT(agreement.Load(*loader_), StatusIs(absl::StatusCode::kAborted, "node 1: no more"));
  ExpectNothingLoaded();
}

TEST_F(RestoreAgreementTest, NothingIsLoadedAfterADrain) {
  RestoreAgreement agreement(Leading());
  agreement.Cancel();
  EXPECT_THAT(agreement.Load(*loader_), StatusIs(absl::StatusCode::kCancelled, "the daemon drains"));
  ExpectNothingLoaded();
}

TEST_F(RestoreAgreementTest, LoadingEndsAtTheDeadline) {
  CountedClock clock;
  RestoreAgreement::Options options = Leading();
  options.deadline = After(clock.Now(), kTimeout);
  options.clock = &clock;
  options.at = [&](RestoreAgreement::Point) { clock.AdvanceAndAwaitLooks(kTimeout); };
  RestoreAgreement agreement(std::move(options));
  EXPECT_THAT(agreement.Load(*loader_),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("node 0 is not done with its rows")));
  ExpectNothingLoaded();
}

TEST_F(RestoreAgreementTest, WhatFollowsLoadingEndsForTheSameReasons) {
  CountedClock clock;
  RestoreAgreement::Options options = Leading();
  options.deadline = After(clock.Now(), kTimeout);
  options.clock = &clock;
  RestoreAgreement agreement(std::move(options));
  ASSERT_OK(agreement.Load(*loader_));
  EXPECT_OK(agreement.CheckContinue());
  clock.Advance(kTimeout);
  EXPECT_THAT(agreement.CheckContinue(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  agreement.OnMessage(Failed(absl::AbortedError("later")));
  EXPECT_THAT(agreement.CheckContinue(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(RestoreAgreementTest, NodeZeroEncodesNoPlanesWhenAnotherDaemonHasFailed) {
  RestoreAgreement agreement(Leading());
  ASSERT_OK(agreement.Load(*loader_));
  EXPECT_OK(agreement.CheckContinue());
  agreement.OnMessage(Failed(absl::UnavailableError("a broken disk")));
  EXPECT_THAT(agreement.CheckContinue(), StatusIs(absl::StatusCode::kUnavailable, "node 1: a broken disk"));
}

// The same message at another node is of a daemon that should not send it.
TEST_F(RestoreAgreementTest, AFollowerListensToNodeZeroAlone) {
  RestoreAgreement::Options options = Leading();
  options.role = RestoreAgreement::Role::kFollower;
  RestoreAgreement agreement(std::move(options));
  agreement.OnMessage(Failed(absl::UnavailableError("a broken disk")));
  EXPECT_OK(agreement.failure());
  agreement.OnMessage({.model = "tiny", .what = RestoreEnd{.id = 8, .status = absl::AbortedError("another restore")}});
  EXPECT_OK(agreement.failure());
  agreement.OnMessage({.model = "tiny", .what = RestoreEnd{.id = 7, .status = absl::AbortedError("given up")}});
  EXPECT_THAT(agreement.failure(), StatusIs(absl::StatusCode::kAborted, "node 0: given up"));
}

}  // namespace
}  // namespace paramshard::server
