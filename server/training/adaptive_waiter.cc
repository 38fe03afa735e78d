#include "server/training/adaptive_waiter.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/shared_memory/pause.h"

namespace paramshard::server {
namespace {

using std::chrono::microseconds;

// Time for which the thread spins after an event: longer than a trainer takes from one gather to the next when it
// computes nothing, and little beside the milliseconds of a layer.
constexpr microseconds kSpinning(100);
// The next command is likely to come at the end of copies. Longer ones leave time to wake up for it.
constexpr microseconds kSpinningForCopies(2000);
// Interval at which a spinning thread looks for words that a GPU has written.
constexpr microseconds kGlance(4);
// Time after an event in which the next command is likely.
constexpr microseconds kLikelyCommand(1000);
// A nap is a part of the time in which nothing has happened, so that waits of milliseconds cost little.
constexpr int kNapsOfAWait = 8;
constexpr microseconds kShortestNap(10);
constexpr microseconds kLongestNap(50);
constexpr int kNapSlackNanoseconds = 1000;

// A doorbell that has rung so often while nothing happened is listened to once in a pause: a trainer that rings it
// without end takes no core from the daemon.
constexpr int kMostIdleRings = 1000;
constexpr absl::Duration kPause = absl::Milliseconds(1);

// A thread that cannot sleep on both sleeps on the doorbell, at most this long at a time: then it looks at the
// daemon's wakeup, even if a trainer keeps the doorbell from ringing.
constexpr absl::Duration kSlice = absl::Milliseconds(5);

}  // namespace

AdaptiveWaiter::AdaptiveWaiter(const Options& options) : options_(options) {
  if (options.on_gpu) prctl(PR_SET_TIMERSLACK, kNapSlackNanoseconds);
}

void AdaptiveWaiter::PrepareWait() {
  const uint32_t doorbell = options_.words.doorbell().value.load(std::memory_order_seq_cst);
  if (doorbell != doorbell_ && idle_rings_ < kMostIdleRings) ++idle_rings_;
  doorbell_ = doorbell;
  wakeup_ = options_.wakeup->rings().load(std::memory_order_seq_cst);
}

void AdaptiveWaiter::NoteEvent() {
  last_event_ = MachineClock::now();
  idle_rings_ = 0;
}

bool AdaptiveWaiter::Rang() const {
  return options_.words.doorbell().value.load(std::memory_order_acquire) != doorbell_ ||
         options_.wakeup->rings().load(std::memory_order_acquire) != wakeup_;
}

void AdaptiveWaiter::Wait(For expected, SteadyTime deadline) {
  const MachineClock::duration quiet = MachineClock::now() - last_event_;
  if (!options_.on_gpu || (expected == For::kNothing && quiet >= kLikelyCommand)) {
    Sleep(Until(deadline, options_.clock->Now()));
  } else if (quiet < (expected == For::kCopies ? kSpinningForCopies : kSpinning)) {
    Spin(expected == For::kNothing ? kSpinning - quiet : kGlance);
  } else {
    std::this_thread::sleep_for(std::clamp<MachineClock::duration>(quiet / kNapsOfAWait, kShortestNap, kLongestNap));
  }
}

void AdaptiveWaiter::Spin(MachineClock::duration most) const {
  const MachineClock::time_point end = MachineClock::now() + most;
  while (!Rang() && MachineClock::now() < end) wire::Pause();
}

// Announces the sleep before both are read again: either the ringer sees it, or this thread sees the ring.
void AdaptiveWaiter::Sleep(absl::Duration most) const {
  options_.wakeup->Listen(true);
  if (idle_rings_ < kMostIdleRings) {
    options_.words.daemon_waits().value.store(1, std::memory_order_seq_cst);
    SleepOnBoth(most);
    options_.words.daemon_waits().value.store(0, std::memory_order_seq_cst);
  } else {
    wire::PrivateFutexWait(options_.wakeup->rings(), wakeup_, std::min(most, kPause));
  }
  options_.wakeup->Listen(false);
}

void AdaptiveWaiter::SleepOnBoth(absl::Duration most) const {
  const std::atomic<uint32_t>& doorbell = options_.words.doorbell().value;
  if (options_.both_at_once) {
    wire::FutexWaitForEither(doorbell, doorbell_, options_.wakeup->rings(), wakeup_, most);
  } else if (!Rang()) {
    wire::FutexWait(doorbell, doorbell_, std::min(most, kSlice));
  }
}

}  // namespace paramshard::server
