#include "server/store/attention.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "proto/wire/futex.h"
#include "proto/wire/pause.h"

namespace paramshard::server {
namespace {

using std::chrono::microseconds;

// For so long after an event the thread spins: longer than a trainer takes from one gather to the next when it computes
// nothing, and little beside the milliseconds of a layer.
constexpr microseconds kSpinning(100);
// The end of copies is when the next command is likely to come. Longer ones leave time to wake up for it.
constexpr microseconds kSpinningForCopies(2000);
// What a GPU has written meanwhile is seen so soon.
constexpr microseconds kGlance(4);
// For so long a command is expected to follow an event.
constexpr microseconds kAttention(1000);
// A nap is a part of the time in which nothing has happened, so that waits of milliseconds cost little.
constexpr int kNapsOfAWait = 8;
constexpr microseconds kShortestNap(10);
constexpr microseconds kLongestNap(50);
constexpr int kNapSlackNanoseconds = 1000;

}  // namespace

Attention::Attention(const wire::Words& words, bool on_gpu) : words_(words), on_gpu_(on_gpu) {
  if (on_gpu) prctl(PR_SET_TIMERSLACK, kNapSlackNanoseconds);
}

void Attention::Look() { doorbell_ = words_.doorbell().value.load(std::memory_order_seq_cst); }

bool Attention::Rang() const { return words_.doorbell().value.load(std::memory_order_acquire) != doorbell_; }

void Attention::Wait(For expected, absl::Time deadline) {
  const Clock::duration quiet = Clock::now() - last_event_;
  if (!on_gpu_ || (expected == For::kNothing && quiet >= kAttention)) {
    Sleep(deadline);
  } else if (quiet < (expected == For::kCopies ? kSpinningForCopies : kSpinning)) {
    Spin(expected == For::kNothing ? kSpinning - quiet : kGlance);
  } else {
    std::this_thread::sleep_for(std::clamp<Clock::duration>(quiet / kNapsOfAWait, kShortestNap, kLongestNap));
  }
}

void Attention::Spin(Clock::duration most) const {
  const Clock::time_point end = Clock::now() + most;
  while (!Rang() && Clock::now() < end) wire::Pause();
}

// `daemon_waits` is raised before the doorbell is read again: whoever rings sees it, or this thread sees the ring.
void Attention::Sleep(absl::Time deadline) const {
  words_.daemon_waits().value.store(1, std::memory_order_seq_cst);
  wire::FutexWait(words_.doorbell().value, doorbell_, deadline - absl::Now());
  words_.daemon_waits().value.store(0, std::memory_order_seq_cst);
}

}  // namespace paramshard::server
