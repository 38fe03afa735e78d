// Deadlines that nobody moves by setting the clock of the machine, and that wait for a process that stands still.
#ifndef PARAMSHARD_SERVER_BASE_STEADY_TIME_H_
#define PARAMSHARD_SERVER_BASE_STEADY_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "server/base/standstill_book.h"

namespace paramshard::server {

using SteadyTime = std::chrono::steady_clock::time_point;

// The machine's steady clock, less the time that this process stood still while it has a Heartbeat.
inline SteadyTime SteadyNow() { return StandstillBook::OfProcess().Now(&std::chrono::steady_clock::now); }

// When that time comes by the machine's steady clock, should the process not stand still before.
inline SteadyTime MachineTime(SteadyTime time) {
  const SteadyTime::duration stood_still = StandstillBook::OfProcess().stood_still();
  return time > SteadyTime::max() - stood_still ? SteadyTime::max() : time + stood_still;
}

// `wait` from now, which counts as at least nothing and at most a year: infinite waits would overflow the clock.
inline SteadyTime SteadyDeadline(absl::Duration wait) {
  const absl::Duration bounded = std::max(absl::ZeroDuration(), std::min(wait, absl::Hours(24 * 365)));
  return SteadyNow() + absl::ToChronoNanoseconds(bounded);
}

// What is left until the deadline; zero when it has passed.
inline absl::Duration TimeLeft(SteadyTime deadline) {
  return std::max(absl::ZeroDuration(), absl::FromChrono(deadline - SteadyNow()));
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_STEADY_TIME_H_
