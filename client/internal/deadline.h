// Deadlines by the monotonic clock.
#ifndef PARAMSHARD_CLIENT_INTERNAL_DEADLINE_H_
#define PARAMSHARD_CLIENT_INTERNAL_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include <grpc/support/time.h>

#include "absl/time/time.h"

namespace paramshard::internal {

// A moment of the monotonic clock: changes of the time of day do not move it.
class Deadline {
 public:
  // `wait` from now; at most a year, for longer waits would overflow the clock.
  static Deadline After(absl::Duration wait) {
    const absl::Duration bounded = std::clamp(wait, absl::ZeroDuration(), absl::Hours(24 * 365));
    return Deadline(Clock::now() + absl::ToChronoNanoseconds(bounded));
  }

  // Time left; zero once the deadline has passed.
  absl::Duration Left() const { return std::max(absl::FromChrono(moment_ - Clock::now()), absl::ZeroDuration()); }
  bool Passed() const { return Clock::now() >= moment_; }

  // gRPC's calls and queues take it as a time span from now.
  gpr_timespec ToGrpc() const { return gpr_time_from_nanos(absl::ToInt64Nanoseconds(Left()), GPR_TIMESPAN); }

 private:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Clock::time_point moment) : moment_(moment) {}

  Clock::time_point moment_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_DEADLINE_H_
