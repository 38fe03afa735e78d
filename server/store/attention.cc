#include "server/store/attention.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <ctime>

#include "proto/wire/futex.h"
#include "proto/wire/pause.h"

namespace paramshard::server {
namespace {

// For so long after an event the thread spins: longer than a trainer takes from one gather to the next when it computes
// nothing, and little beside the milliseconds of a layer.
constexpr absl::Duration kSpinning = absl::Microseconds(100);
// What a GPU has written meanwhile is seen so soon.
constexpr absl::Duration kGlance = absl::Microseconds(4);
// For so long a command is expected to follow an event.
constexpr absl::Duration kAttention = absl::Milliseconds(1);
// The end of copies is when the next command is likely to come. Longer ones leave time to wake up for it.
constexpr absl::Duration kSpinningForCopies = absl::Milliseconds(2);
// A nap is a part of the time in which nothing has happened, so that waits of milliseconds cost little.
constexpr int kNapsOfAWait = 8;
constexpr absl::Duration kShortestNap = absl::Microseconds(10);
constexpr absl::Duration kLongestNap = absl::Microseconds(50);
constexpr int kNapSlackNanoseconds = 1000;

void Nap(absl::Duration length) {
  const timespec nap = absl::ToTimespec(length);
  nanosleep(&nap, nullptr);
}

}  // namespace

Attention::Attention(const wire::Words& words, bool on_gpu) : words_(words), on_gpu_(on_gpu) {
  if (on_gpu) prctl(PR_SET_TIMERSLACK, kNapSlackNanoseconds);
}

void Attention::Look() { doorbell_ = words_.doorbell().value.load(std::memory_order_seq_cst); }

bool Attention::Rang() const { return words_.doorbell().value.load(std::memory_order_acquire) != doorbell_; }

void Attention::Wait(For expected, absl::Time deadline) {
  const absl::Duration quiet = absl::Now() - last_event_;
  if (!on_gpu_ || (expected == For::kNothing && quiet >= kAttention)) {
    Sleep(deadline);
  } else if (quiet < (expected == For::kCopies ? kSpinningForCopies : kSpinning)) {
    Spin(expected == For::kNothing ? kSpinning - quiet : kGlance);
  } else {
    Nap(std::clamp(quiet / kNapsOfAWait, kShortestNap, kLongestNap));
  }
}

void Attention::Spin(absl::Duration most) const {
  const absl::Time end = absl::Now() + most;
  while (!Rang() && absl::Now() < end) wire::Pause();
}

// `daemon_waits` is raised before the doorbell is read again: whoever rings sees it, or this thread sees the ring.
void Attention::Sleep(absl::Time deadline) const {
  words_.daemon_waits().value.store(1, std::memory_order_seq_cst);
  wire::FutexWait(words_.doorbell().value, doorbell_, deadline - absl::Now());
  words_.daemon_waits().value.store(0, std::memory_order_seq_cst);
}

}  // namespace paramshard::server
