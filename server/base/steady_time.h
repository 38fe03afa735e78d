// Deadlines on the steady clock. They move on by the time that the process was stopped or the machine suspended.
#ifndef PARAMSHARD_SERVER_BASE_STEADY_TIME_H_
#define PARAMSHARD_SERVER_BASE_STEADY_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "server/base/stall_clock.h"

namespace paramshard::server {

using SteadyTime = std::chrono::steady_clock::time_point;

// The machine's steady clock, less the time that this process stood still while it has a Heartbeat.
inline SteadyTime SteadyNow() { return StallClock::OfProcess().Now(&std::chrono::steady_clock::now); }

// Converts `time` to the machine's steady clock; valid while the process does not stand still.
inline SteadyTime MachineTime(SteadyTime time) {
  const SteadyTime::duration stalled_time = StallClock::OfProcess().stalled_time();
  return time > SteadyTime::max() - stalled_time ? SteadyTime::max() : time + stalled_time;
}

// Returns the time `wait` from now. `wait` is clamped to [0, 1 year]: infinite waits would overflow the clock.
inline SteadyTime SteadyDeadline(absl::Duration wait) {
  const absl::Duration bounded = std::max(absl::ZeroDuration(), std::min(wait, absl::Hours(24 * 365)));
  return SteadyNow() + absl::ToChronoNanoseconds(bounded);
}

// Returns the time until the deadline; zero when it has passed.
inline absl::Duration TimeLeft(SteadyTime deadline) {
  return std::max(absl::ZeroDuration(), absl::FromChrono(deadline - SteadyNow()));
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_STEADY_TIME_H_
