// Keeps a line of the log that others can bring about from filling it.
#ifndef PARAMSHARD_SERVER_LOG_LOG_THROTTLE_H_
#define PARAMSHARD_SERVER_LOG_LOG_THROTTLE_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"

namespace paramshard::server {

// One for each kind of line. Thread-safe.
//
//   if (const auto count = refusals.Pass()) Log(LogLevel::kWarning, "refused", {{"count", absl::StrCat(*count)}});
class LogThrottle {
 public:
  explicit LogThrottle(absl::Duration interval = absl::Minutes(1), const Clock& clock = Clock::Steady())
      : interval_(interval), clock_(clock) {}

  // For how many events a line is due now: this one, and those since the last line. None within the interval after a
  // line.
  std::optional<int64_t> Pass() {
    absl::MutexLock lock(&mu_);
    ++events_;
    const SteadyTime now = clock_.Now();
    if (quiet_until_.has_value() && now < *quiet_until_) return std::nullopt;
    quiet_until_ = After(now, interval_);
    return std::exchange(events_, 0);
  }

 private:
  const absl::Duration interval_;
  const Clock& clock_;
  absl::Mutex mu_;
  int64_t events_ ABSL_GUARDED_BY(mu_) = 0;  // since the last line
  std::optional<SteadyTime> quiet_until_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LOG_LOG_THROTTLE_H_
