// How a client waits for a daemon that is being started again.
#ifndef PARAMSHARD_CLIENT_INTERNAL_RESTART_WAIT_H_
#define PARAMSHARD_CLIENT_INTERNAL_RESTART_WAIT_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/internal/deadline.h"
#include "client/internal/interruption.h"

namespace paramshard::internal {

// One call's tries, and the pauses between them, which grow to a quarter of a second. Used by one thread.
//
//   RestartWait wait("open model m", timeout, on_wait);
//   while (true) {
//     const absl::Status tried = Try();
//     if (tried.ok() || !wait.Pause(tried)) return wait.Explain(tried);
//   }
class RestartWait {
 public:
  // `timeout` is for all pauses and failed tries of the call together. `on_wait` hears once that it waits, and for
  // what; where there is none, standard error does.
  RestartWait(std::string call, absl::Duration timeout, std::function<void(absl::string_view)> on_wait,
              Interruption interruption = Interruption());

  // Whether to try again after this failure; has paused by then. False at once for what is not UNAVAILABLE, when the
  // time is used up, and when the caller interrupts it.
  bool Pause(const absl::Status& failure);

  // The daemon has answered: what it takes from now on is no wait for it.
  void Reached();

  // The interruption; else the last failure, and how long was waited for its end, if at all.
  absl::Status Explain(const absl::Status& failure) const;

 private:
  void Tell(const absl::Status& failure);

  const std::string call_;
  const absl::Duration timeout_;
  const std::function<void(absl::string_view)> on_wait_;
  const Interruption interruption_;
  absl::Status interrupted_;
  absl::Duration left_;
  std::optional<Deadline> outage_;  // while the daemon does not answer
  absl::Duration pause_;
  bool told_ = false;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_RESTART_WAIT_H_
