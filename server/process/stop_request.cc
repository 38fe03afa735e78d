#include "server/process/stop_request.h"

#include "kernels/base/status_macros.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Returns true if the keeper may have accepted a request in spite of this error.
bool MayBeTakenOver(const absl::Status& asked) { return absl::IsDeadlineExceeded(asked) || absl::IsUnavailable(asked); }

}  // namespace

bool StopRequest::Make() {
  absl::MutexLock lock(&making_);
  if (made_.HasBeenNotified()) return false;
  made_.Notify();
  return true;
}

absl::Status StopRequest::MakeForRestart(const ServerCommandChange& change, bool lose_models) {
  absl::MutexLock lock(&restarting_);
  // A stop that was requested before must not become a restart.
  if (made_.HasBeenNotified()) return absl::UnavailableError("restart: the daemon drains");
  const bool is_other = change.program.has_value() || change.arguments.has_value() || lose_models;
  const bool was_other = next_is_other_;
  // Set before the request, and even if the keeper does not answer, so that a stop by a signal meanwhile saves.
  if (is_other) next_is_other_ = true;
  const absl::Status asked = keeper_.restart(change);
  if (!asked.ok() && !MayBeTakenOver(asked)) next_is_other_ = was_other;
  RETURN_IF_ERROR(asked);
  // The keeper starts the command of its last request.
  next_is_other_ = is_other;
  lose_models_ = lose_models;
  if (Make()) Log(LogLevel::kInfo, "draining", {{"call", "Restart"}});
  return absl::OkStatus();
}

bool StopRequest::models_stay() const { return keeper_.kept != nullptr && keeper_.is_followed() && !next_is_other_; }

absl::Status StopRequest::Reason(bool saves) const {
  if (keeper_.is_followed() && keeper_.kept != nullptr && !lose_models_) {
    return absl::UnavailableError("the daemon is restarting");
  }
  return absl::UnavailableError(saves ? "the daemon stops, and saves unsaved commits"
                                      : "the daemon stops; state that was not exported is lost");
}

}  // namespace paramshard::server
