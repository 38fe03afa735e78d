// A client's wait for a daemon that is being restarted.
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
  // `timeout` is for all pauses and failed tries of the call together. `on_wait` is called once with what it waits for;
  // where it is empty, the text goes to standard error.
  RestartWait(std::string call, absl::Duration timeout, std::function<void(absl::string_view)> on_wait,
              Interruption interruption = Interruption());

  // Pauses after this failure, and returns true if the caller should try again. Returns false at once for errors other
  // than UNAVAILABLE, when the time is used up, and when the caller interrupts it.
  bool Pause(const absl::Status& failure);

  // The daemon has answered: the time from now on does not count.
  void Reached();

  // Returns the interruption; else the last failure, with the time waited, if any.
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
