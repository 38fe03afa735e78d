// Policy of restarts of a server that has ended.
#ifndef PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_
#define PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// A value: it neither waits nor reads a clock. The first restart is immediate; pauses before later ones double, until a
// server has been ready for a while. Servers that become ready are restarted without limit; after `most_failed_starts`
// servers in a row that did not, there is no further restart.
class RestartPolicy {
 public:
  struct Options {
    int most_failed_starts = 5;  // in a row
    absl::Duration first_pause = absl::Milliseconds(100);
    absl::Duration longest_pause = absl::Seconds(10);
    // A server that was ready for so long resets the pauses.
    absl::Duration good_after = absl::Seconds(60);
  };

  explicit RestartPolicy(const Options& options) : options_(options) {}

  // A server was started, or failed to start.
  void OnStart() {
    ready_since_.reset();
    ++failed_starts_;
  }

  void OnReady(SteadyTime now) {
    if (!ready_since_.has_value()) ready_since_ = now;
    failed_starts_ = 0;
  }

  // The server has ended, or failed to start. Returns the pause after `now` before the next start; null after too many
  // failed starts.
  std::optional<absl::Duration> OnEnd(SteadyTime now) {
    if (ready_since_.has_value() && now >= After(*ready_since_, options_.good_after)) pause_ = absl::ZeroDuration();
    if (failed_starts_ >= options_.most_failed_starts) return std::nullopt;
    const absl::Duration pause = pause_;
    pause_ = std::min(options_.longest_pause, std::max(options_.first_pause, 2 * pause_));
    return pause;
  }

  // Forgets earlier failures, for a start that an operator requests.
  void Reset() { *this = RestartPolicy(options_); }

 private:
  Options options_;
  absl::Duration pause_;  // before the next start
  int failed_starts_ = 0;
  std::optional<SteadyTime> ready_since_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_RESTART_POLICY_H_
