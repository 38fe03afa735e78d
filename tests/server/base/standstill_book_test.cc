#include "server/base/standstill_book.h"

#include <chrono>
#include <utility>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using std::chrono::milliseconds;

class StandstillBookTest : public testing::Test {
 protected:
  using Time = StandstillBook::Time;

  void Pass(milliseconds time) { machine_ += time; }
  void Beat() {
    book_.Beat([this] { return machine_; });
  }
  // Beats that are on time.
  void Run(milliseconds time) {
    for (milliseconds passed{0}; passed < time; passed += StandstillBook::kBeat) {
      Pass(StandstillBook::kBeat);
      Beat();
    }
  }
  Time Now() {
    return book_.Now([this] { return machine_; });
  }

  StandstillBook book_;
  Time machine_ = Time(std::chrono::hours(1));
};

TEST_F(StandstillBookTest, WithoutBeatsItIsTheMachinesClock) {
  EXPECT_EQ(Now(), machine_);
  Pass(std::chrono::hours(1));
  EXPECT_EQ(Now(), machine_);
}

TEST_F(StandstillBookTest, TimeRunsWhileTheProcessRuns) {
  Beat();
  const Time begin = Now();
  Run(milliseconds(2000));
  // A loaded machine skips some beats.
  Pass(StandstillBook::kStandstill);
  EXPECT_EQ(Now() - begin, milliseconds(2000) + StandstillBook::kStandstill);
}

TEST_F(StandstillBookTest, AStandstillIsLeftOutWhoeverLooksFirst) {
  for (const bool beats_first : {false, true}) {
    Beat();
    const Time begin = Now();
    Pass(std::chrono::hours(3));
    if (beats_first) Beat();
    EXPECT_EQ(Now() - begin, StandstillBook::kBeat) << beats_first;
    EXPECT_EQ(Now() - begin, StandstillBook::kBeat) << "it is left out once";
    Run(milliseconds(1000));
    EXPECT_EQ(Now() - begin, StandstillBook::kBeat + milliseconds(1000));
  }
  EXPECT_EQ(book_.stood_still(), 2 * (std::chrono::hours(3) - StandstillBook::kBeat));
}

// Between the time and the book the process stands still, and another thread notices it first.
TEST_F(StandstillBookTest, ATimeFromBeforeAStandstillIsNotTakenForOneBehindIt) {
  Beat();
  const Time begin = Now();
  bool is_first = true;
  const Time now = book_.Now([&] {
    const Time read = machine_;
    if (std::exchange(is_first, false)) {
      Pass(std::chrono::hours(3));
      Beat();
    }
    return read;
  });
  EXPECT_EQ(now - begin, StandstillBook::kBeat);
}

TEST_F(StandstillBookTest, APauseOfTheBeatsIsNoStandstill) {
  Beat();
  book_.Pause();
  Pass(std::chrono::hours(3));
  EXPECT_EQ(book_.stood_still(), StandstillBook::Time::duration::zero());
  EXPECT_EQ(Now(), machine_);
}

}  // namespace
}  // namespace paramshard::server
