// When a server that has ended is started again.
#ifndef PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_
#define PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// A value: it neither waits nor looks at a clock. The first restart is at once; those that follow come after pauses
// that double, until a server has been ready for a while. A server that becomes ready is restarted however often it
// ends; one that does not, only so often in a row.
class RestartPolicy {
 public:
  struct Options {
    int most_failed_starts = 5;  // in a row
    absl::Duration first_pause = absl::Milliseconds(100);
    absl::Duration longest_pause = absl::Seconds(10);
    // Who was ready for so long and ends then has nothing to do with the ends before.
    absl::Duration good_after = absl::Seconds(60);
  };

  explicit RestartPolicy(const Options& options) : options_(options) {}

  // A server has been started, or could not be.
  void OnStart() {
    ready_since_.reset();
    ++failed_starts_;
  }

  void OnReady(SteadyTime now) {
    if (!ready_since_.has_value()) ready_since_ = now;
    failed_starts_ = 0;
  }

  // The server has ended, or could not be started. Returns how long after `now` the next one is started; nothing when
  // that has failed too often.
  std::optional<absl::Duration> OnEnd(SteadyTime now) {
    if (ready_since_.has_value() && now >= After(*ready_since_, options_.good_after)) pause_ = absl::ZeroDuration();
    if (failed_starts_ >= options_.most_failed_starts) return std::nullopt;
    const absl::Duration pause = pause_;
    pause_ = std::min(options_.longest_pause, std::max(options_.first_pause, 2 * pause_));
    return pause;
  }

  // Somebody asks for a start: as if none had failed.
  void Reset() { *this = RestartPolicy(options_); }

 private:
  Options options_;
  absl::Duration pause_;  // before the next start
  int failed_starts_ = 0;
  std::optional<SteadyTime> ready_since_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_
