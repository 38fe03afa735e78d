// Deadlines for condition variables.
#ifndef PARAMSHARD_SERVER_CLUSTER_STEADY_DEADLINE_H_
#define PARAMSHARD_SERVER_CLUSTER_STEADY_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace paramshard::server {

// `wait` from now. At most a year: infinite waits would overflow the clock.
inline std::chrono::steady_clock::time_point SteadyDeadline(absl::Duration wait) {
  const absl::Duration bounded = std::max(absl::ZeroDuration(), std::min(wait, absl::Hours(24 * 365)));
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(bounded);
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_STEADY_DEADLINE_H_
