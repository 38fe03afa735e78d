// Clock of deadlines; a seam for tests.
#ifndef PARAMSHARD_SERVER_BASE_CLOCK_H_
#define PARAMSHARD_SERVER_BASE_CLOCK_H_

#include <algorithm>

#include "absl/time/time.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// A deadline that never comes.
inline constexpr SteadyTime kNever = SteadyTime::max();

// `wait` after `from`; a wait of more than a year, or from kNever, does not end.
inline SteadyTime After(SteadyTime from, absl::Duration wait) {
  if (from == kNever || wait > absl::Hours(24 * 365)) return kNever;
  return from + absl::ToChronoNanoseconds(std::max(wait, absl::ZeroDuration()));
}

// Returns the time from `now` to the deadline: infinite for kNever, zero when it has passed.
inline absl::Duration Until(SteadyTime deadline, SteadyTime now) {
  if (deadline == kNever) return absl::InfiniteDuration();
  return std::max(absl::ZeroDuration(), absl::FromChrono(deadline - now));
}

// Thread-safe. A thread that waits for a deadline sleeps for Until(deadline, clock.Now()) and looks again: a test that
// has moved its clock wakes the sleepers.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime Now() const = 0;

  // The machine's clock.
  static const Clock& Steady() {
    class Machine final : public Clock {
      SteadyTime Now() const override { return SteadyNow(); }
    };
    static const Machine clock;
    return clock;
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_CLOCK_H_
