#include "server/base/stall_clock.h"

#include <chrono>
#include <utility>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using std::chrono::milliseconds;

class StallClockTest : public testing::Test {
 protected:
  using Time = StallClock::Time;

  void Pass(milliseconds time) { machine_ += time; }
  void Beat() {
    clock_.Beat([this] { return machine_; });
  }
  // Beats that are on time.
  void Run(milliseconds time) {
    for (milliseconds passed{0}; passed < time; passed += StallClock::kBeat) {
      Pass(StallClock::kBeat);
      Beat();
    }
  }
  Time Now() {
    return clock_.Now([this] { return machine_; });
  }

  StallClock clock_;
  Time machine_ = Time(std::chrono::hours(1));
};

TEST_F(StallClockTest, WithoutBeatsItIsTheMachinesClock) {
  EXPECT_EQ(Now(), machine_);
  Pass(std::chrono::hours(1));
  EXPECT_EQ(Now(), machine_);
}

TEST_F(StallClockTest, TimeRunsWhileTheProcessRuns) {
  Beat();
  const Time begin = Now();
  Run(milliseconds(2000));
  // A loaded machine skips some beats.
  Pass(StallClock::kStall);
  EXPECT_EQ(Now() - begin, milliseconds(2000) + StallClock::kStall);
}

TEST_F(StallClockTest, AStallIsLeftOutWhoeverLooksFirst) {
  for (const bool beats_first : {false, true}) {
    Beat();
    const Time begin = Now();
    Pass(std::chrono::hours(3));
    if (beats_first) Beat();
    EXPECT_EQ(Now() - begin, StallClock::kBeat) << beats_first;
    EXPECT_EQ(Now() - begin, StallClock::kBeat) << "it is left out once";
    Run(milliseconds(1000));
    EXPECT_EQ(Now() - begin, StallClock::kBeat + milliseconds(1000));
  }
  EXPECT_EQ(clock_.stalled_time(), 2 * (std::chrono::hours(3) - StallClock::kBeat));
}

// Between the time and the clock the process stands still, and another thread notices it first.
TEST_F(StallClockTest, ATimeFromBeforeAStallIsNotTakenForOneBehindIt) {
  Beat();
  const Time begin = Now();
  bool is_first = true;
  const Time now = clock_.Now([&] {
    const Time read = machine_;
    if (std::exchange(is_first, false)) {
      Pass(std::chrono::hours(3));
      Beat();
    }
    return read;
  });
  EXPECT_EQ(now - begin, StallClock::kBeat);
}

TEST_F(StallClockTest, APauseOfTheBeatsIsNoStall) {
  Beat();
  clock_.Pause();
  Pass(std::chrono::hours(3));
  EXPECT_EQ(clock_.stalled_time(), StallClock::Time::duration::zero());
  EXPECT_EQ(Now(), machine_);
}

}  // namespace
}  // namespace paramshard::server
