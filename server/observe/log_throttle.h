// Throttles of log lines that clients can trigger.
#ifndef PARAMSHARD_SERVER_OBSERVE_LOG_THROTTLE_H_
#define PARAMSHARD_SERVER_OBSERVE_LOG_THROTTLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/observe/log.h"

namespace paramshard::server {

// Throttle of one kind of line. Thread-safe.
//
//   if (const auto count = refusals.Pass()) Log(LogLevel::kWarning, "refused", {{"count", absl::StrCat(*count)}});
class LogThrottle {
 public:
  // An interval begins with a line, and has at most `lines`.
  explicit LogThrottle(absl::Duration interval = absl::Minutes(1), const Clock& clock = Clock::Steady(), int lines = 1)
      : interval_(interval), clock_(clock), lines_(lines) {}

  // Counts an event. Returns how many events the line stands for that is due now: this event and those since the last
  // line. Null if the interval has had its lines.
  std::optional<int64_t> Pass() {
    absl::MutexLock lock(&mu_);
    ++events_;
    const SteadyTime now = clock_.Now();
    if (!end_.has_value() || now >= *end_) {
      end_ = After(now, interval_);
      lines_left_ = lines_;
    }
    if (lines_left_ == 0) return std::nullopt;
    --lines_left_;
    return std::exchange(events_, 0);
  }

 private:
  const absl::Duration interval_;
  const Clock& clock_;
  const int lines_;
  absl::Mutex mu_;
  int64_t events_ ABSL_GUARDED_BY(mu_) = 0;  // since the last line
  std::optional<SteadyTime> end_ ABSL_GUARDED_BY(mu_);
  int lines_left_ ABSL_GUARDED_BY(mu_) = 0;
};

// Log with a throttle for each event. The field `count` of a line tells how many events it stands for. Thread-safe.
//
//   log.Write(LogLevel::kInfo, "epoch started", {{"model", name}});
class ThrottledLog {
 public:
  // Enough for every event of a training, and few for a client that attaches and detaches in a loop.
  static constexpr int kLinesAMinute = 60;

  explicit ThrottledLog(const Clock& clock = Clock::Steady()) : clock_(clock) {}

  void Write(LogLevel level, absl::string_view event, LogFields fields) {
    if (const std::optional<int64_t> count = Of(event).Pass()) Log(level, event, fields, *count);
  }

 private:
  LogThrottle& Of(absl::string_view event) {
    absl::MutexLock lock(&mu_);
    const auto found = throttles_.find(event);
    if (found != throttles_.end()) return found->second;
    return throttles_.try_emplace(std::string(event), absl::Minutes(1), clock_, kLinesAMinute).first->second;
  }

  const Clock& clock_;
  absl::Mutex mu_;
  std::map<std::string, LogThrottle, std::less<>> throttles_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_LOG_THROTTLE_H_
