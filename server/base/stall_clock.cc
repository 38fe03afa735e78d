#include "server/base/stall_clock.h"

#include <algorithm>

namespace paramshard::server {

bool StallClock::IsStalledAt(Ticks now) const {
  const Ticks last = last_beat_.load(std::memory_order_acquire);
  return last != 0 && now - last > std::chrono::duration_cast<Time::duration>(kStall).count();
}

void StallClock::Count(Ticks now) {
  absl::MutexLock lock(&mu_);
  const Ticks last = last_beat_.load(std::memory_order_relaxed);
  if (IsStalledAt(now)) {
    stalled_time_.fetch_add(now - last - std::chrono::duration_cast<Time::duration>(kBeat).count(),
                            std::memory_order_release);
  }
  last_beat_.store(std::max(last, now), std::memory_order_release);
}

StallClock& StallClock::OfProcess() {
  static StallClock& clock = *new StallClock;
  return clock;
}

void StallClock::Pause() {
  absl::MutexLock lock(&mu_);
  last_beat_.store(0, std::memory_order_release);
}

void StallClock::Beat(MachineClock machine) { Count(machine().time_since_epoch().count()); }

StallClock::Time StallClock::Now(MachineClock machine) {
  while (true) {
    const Ticks before = stalled_time_.load(std::memory_order_acquire);
    const Ticks now = machine().time_since_epoch().count();
    if (IsStalledAt(now)) Count(now);
    // If the process stood still between these lines, `now` and the sum do not belong together.
    if (stalled_time_.load(std::memory_order_acquire) == before) return Time(Time::duration(now - before));
  }
}

}  // namespace paramshard::server
