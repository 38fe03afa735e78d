#include "server/base/standstill_book.h"

#include <algorithm>

namespace paramshard::server {

bool StandstillBook::StandsStillAt(Ticks now) const {
  const Ticks last = last_beat_.load(std::memory_order_acquire);
  return last != 0 && now - last > std::chrono::duration_cast<Time::duration>(kStandstill).count();
}

void StandstillBook::Count(Ticks now) {
  absl::MutexLock lock(&mu_);
  const Ticks last = last_beat_.load(std::memory_order_relaxed);
  if (StandsStillAt(now)) {
    stood_still_.fetch_add(now - last - std::chrono::duration_cast<Time::duration>(kBeat).count(),
                           std::memory_order_release);
  }
  last_beat_.store(std::max(last, now), std::memory_order_release);
}

StandstillBook& StandstillBook::OfProcess() {
  static StandstillBook& book = *new StandstillBook;
  return book;
}

void StandstillBook::Pause() {
  absl::MutexLock lock(&mu_);
  last_beat_.store(0, std::memory_order_release);
}

void StandstillBook::Beat(MachineClock machine) { Count(machine().time_since_epoch().count()); }

StandstillBook::Time StandstillBook::Now(MachineClock machine) {
  while (true) {
    const Ticks before = stood_still_.load(std::memory_order_acquire);
    const Ticks now = machine().time_since_epoch().count();
    if (StandsStillAt(now)) Count(now);
    // If the process stood still between these lines, `now` and the sum do not belong together.
    if (stood_still_.load(std::memory_order_acquire) == before) return Time(Time::duration(now - before));
  }
}

}  // namespace paramshard::server
