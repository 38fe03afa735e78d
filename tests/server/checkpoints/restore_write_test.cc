#include "server/checkpoints/restore_write.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/checkpoint/reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/leading_restore.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/server/checkpoints/shard_world.h"
#include "tests/status_matchers.h"

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

class RestoreWriteTest : public RestoreTest {
 protected:
  RestoreWriteTest() : saved_(checkpoint::TinySpec(), 4), world_(saved_.spec(), {1, 1}) {}
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(Reader reader, Reader::Open(Write(saved_, {2, 2}), {}));
    reader_ = std::make_unique<Reader>(std::move(reader));
    ASSERT_OK_AND_ASSIGN(restorer_, Prepare(*reader_, world_));
  }
  void ExpectNothingWritten() const {
    EXPECT_FALSE(restorer_->torn());
    EXPECT_EQ(restorer_->progress().done_bytes, 0);
  }

  const SavedModel saved_;
  const ShardWorld world_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Restorer> restorer_;
};

TEST_F(RestoreWriteTest, OneThatNothingStopsWritesAll) {
  RestoreWrite write({});
  int looks = 0;
  EXPECT_OK(write.Run(
      *restorer_, [&] { ++looks; }, absl::DeadlineExceededError("late")));
  EXPECT_GE(looks, 1);
  EXPECT_EQ(restorer_->progress().done_bytes, restorer_->progress().all_bytes);
}

TEST_F(RestoreWriteTest, OneThatIsStoppedEndsWithTheFirstReason) {
  RestoreWrite* running = nullptr;
  RestoreWrite write({.before_rows = [&] {
    running->Stop(absl::AbortedError("no more"));
    running->Stop(absl::InternalError("later"));
  }});
  running = &write;
  EXPECT_THAT(write.Run(
                  *restorer_, [] {}, absl::DeadlineExceededError("late")),
              StatusIs(absl::StatusCode::kAborted, "no more"));
  ExpectNothingWritten();
}

TEST_F(RestoreWriteTest, OneThatIsStoppedBeforeItBeginsWritesNothing) {
  RestoreWrite write({});
  write.Stop(absl::AbortedError("no more"));
  EXPECT_THAT(write.Run(
                  *restorer_, [] {}, absl::DeadlineExceededError("late")),
              StatusIs(absl::StatusCode::kAborted, "no more"));
  ExpectNothingWritten();
}

TEST_F(RestoreWriteTest, ItEndsAtTheDeadline) {
  CountedClock clock;
  RestoreWrite write({.deadline = After(clock.Now(), kTimeout), .clock = &clock, .before_rows = [&] {
                        clock.AdvanceAndAwaitLooks(kTimeout);
                      }});
  EXPECT_THAT(write.Run(
                  *restorer_, [] {}, absl::DeadlineExceededError("late")),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "late"));
  ExpectNothingWritten();
}

TEST_F(RestoreWriteTest, WhatFollowsTheWriteEndsForTheSameReasons) {
  CountedClock clock;
  const absl::Status late = absl::DeadlineExceededError("late");
  RestoreWrite write({.deadline = After(clock.Now(), kTimeout), .clock = &clock});
  ASSERT_OK(write.Run(
      *restorer_, [] {}, late));
  EXPECT_OK(write.CheckGoesOn(late));
  clock.Advance(kTimeout);
  EXPECT_THAT(write.CheckGoesOn(late), StatusIs(absl::StatusCode::kDeadlineExceeded, "late"));
  write.Stop(absl::AbortedError("later"));
  EXPECT_THAT(write.CheckGoesOn(late), StatusIs(absl::StatusCode::kDeadlineExceeded, "late"));
}

TEST_F(RestoreWriteTest, NodeZeroEncodesNoPlanesWhenAnotherDaemonHasFailed) {
  LeadingRestore leading({.model = "tiny", .order = {.id = 7}});
  ASSERT_OK(leading.Write(*restorer_));
  EXPECT_OK(leading.CheckGoesOn());
  leading.OnReport({.id = 7, .node = 1, .status = absl::UnavailableError("a broken disk")});
  EXPECT_THAT(leading.CheckGoesOn(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: a broken disk")));
}

TEST_F(RestoreWriteTest, NodeZeroStopsWhenAnotherDaemonHasFailed) {
  LeadingRestore* leads = nullptr;
  const auto fail = [&] { leads->OnReport({.id = 7, .node = 1, .status = absl::UnavailableError("a broken disk")}); };
  LeadingRestore leading({.model = "tiny", .order = {.id = 7}, .before_rows = fail});
  leads = &leading;
  EXPECT_THAT(leading.Write(*restorer_), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: a broken disk")));
  ExpectNothingWritten();
}

}  // namespace
}  // namespace paramshard::server
