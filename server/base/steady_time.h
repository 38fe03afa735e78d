// Deadlines that nobody moves by setting the clock of the machine.
#ifndef PARAMSHARD_SERVER_BASE_STEADY_TIME_H_
#define PARAMSHARD_SERVER_BASE_STEADY_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace paramshard::server {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime SteadyNow() { return std::chrono::steady_clock::now(); }

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
