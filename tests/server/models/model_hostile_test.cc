// Trainers that mean harm.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// The trainer of rank 0 writes whatever it can into its page, and moves threads that sleep on its doorbell.
class HostileTest : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    Attach();
    for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDaemonAsleep());
    hostile_ = std::thread([this, words = trainer(0).words()] { Torment(words); });
  }
  void TearDown() override {
    StopTorment();
    CloseWorld();
  }
  // Before the page is unmapped.
  void StopTorment() {
    over_ = true;
    if (hostile_.joinable()) hostile_.join();
  }
  void Torment(const wire::Words& words) {
    std::atomic<uint32_t>& doorbell = words.doorbell().value;
    for (uint32_t i = 0; !over_; ++i) {
      words.daemon_waits().value = 0;
      if (i % 64 == 0) doorbell = i;
      words.ring_tail().value = i;
      words.ready(0, 1).value = i;
      words.committed().value = i;
      // Moves sleepers to a word where nothing wakes them.
      syscall(SYS_futex, &doorbell, FUTEX_CMP_REQUEUE, 0, 1, &words.filled(1).value, doorbell.load());
    }
  }
  void ExpectToldAndOver() {
    const EpochEndInfo* ended = trainer(1).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(trainer(1).words().end_code(), static_cast<uint32_t>(ended->why.code()));
    StopTorment();
  }

  ManualClock clock_;
  std::atomic<bool> over_{false};
  std::thread hostile_;
};

TEST_F(HostileTest, ItsNeighboursDepartureEndsTheEpoch) {
  trainer(1).Leave();
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, ItsOwnDepartureEndsTheEpoch) {
  trainer(0).Leave();
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, AnErrorOfItsNeighbourEndsTheEpoch) {
  EXPECT_OK(model_->trainers().Submit(trainer(1).session(), GatherCommand(7, kW, 0)));
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, ADrainEndsTheEpoch) {
  model_->trainers().Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  EXPECT_FALSE(model_->trainers().activity().running);
  ExpectToldAndOver();
}

TEST_F(HostileTest, TheModelMayBeDestroyed) {
  world_->CloseStore();
  model_.reset();
  ExpectToldAndOver();
}

// Its own commands that need its own words come late, or not at all; the other ranks' commands come.
TEST_F(HostileTest, ItsNeighboursWaitIsEndedInTime) {
  StopTorment();
  Open(TestSpec(), {.step_timeout = absl::Milliseconds(50), .clock = &clock_});
  Attach();
  over_ = false;
  hostile_ = std::thread([this, words = trainer(0).words()] { Torment(words); });
  trainer(1).Commit(1);
  ASSERT_TRUE(AwaitWait("rank 0: commit 1"));
  clock_.Advance(absl::Milliseconds(50));
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  EXPECT_THAT(trainer(1).AwaitEnded()->why.message(), HasSubstr("rank 0 did not reach commit 1"));
}

}  // namespace
}  // namespace paramshard::server
