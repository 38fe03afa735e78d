#include "server/edge/interrupted_changes.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/checkpoints/restore_task.h"
#include "server/edge/file_import.h"
#include "server/models/import_lock.h"
#include "server/observe/log.h"
#include "server/terms/state_condition.h"

namespace paramshard::server {
namespace {

absl::Status RestoreAgain(const std::shared_ptr<Model>& model, const ChangeSource& source) {
  ASSIGN_OR_RETURN(ImportLock lock, ImportLock::BeginAgain(model));
  ASSIGN_OR_RETURN(const std::unique_ptr<RestoreTask> task,
                   RestoreTask::Prepare(std::move(lock), source.text, {.convert_moments = source.convert_moments}));
  return task->Run().status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<InterruptedChanges>> InterruptedChanges::Start(ModelStore* store,
                                                                              std::vector<InterruptedChange> changes,
                                                                              const Options& options) {
  std::unique_ptr<InterruptedChanges> started(new InterruptedChanges(store, std::move(changes), options));
  if (started->changes_.empty()) return started;
  ASSIGN_OR_RETURN(started->thread_,
                   StartThread("changes that were cut off", [changes = started.get()] { changes->Run(); }));
  return started;
}

InterruptedChanges::~InterruptedChanges() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  stopped_.SignalAll();
  Await();
}

void InterruptedChanges::Await() {
  if (thread_.joinable()) thread_.join();
}

// A model that is lost ends with its change.
void InterruptedChanges::Run() {
  for (InterruptedChange& cut_off : changes_) {
    const InterruptedChange change = std::move(cut_off);
    if (IsStopping()) return;
    const SteadyTime begin = SteadyNow();
    const absl::Status status = MakeWithRetries(change);
    if (!status.ok() && IsStopping()) return;
    store_->FinishChange(change.model, status);
    // A restore has logged itself.
    if (!status.ok() || change.source.kind == ChangeSource::Kind::kCheckpoint) continue;
    Log(LogLevel::kInfo, "completed an interrupted import",
        {{"model", change.model->spec().name},
         {"history", change.model->state().history().id.ToString()},
         {"elapsed", absl::FormatDuration(absl::FromChrono(SteadyNow() - begin))}});
  }
}

absl::Status InterruptedChanges::MakeWithRetries(const InterruptedChange& change) {
  std::optional<SteadyTime> deadline;
  for (absl::Duration pause = options_.first_pause;; pause = std::min(2 * pause, options_.longest_pause)) {
    const absl::Status status = Make(change);
    if (!MayPass(status) || IsStopping()) return status;
    const SteadyTime now = options_.clock->Now();
    if (!deadline.has_value()) deadline = After(now, options_.timeout);
    if (After(now, pause) > *deadline) return status;
    Log(LogLevel::kWarning, "retrying an interrupted change",
        {{"model", change.model->spec().name}, {"why", status.ToString()}, {"pause", absl::FormatDuration(pause)}});
    if (!Pause(pause)) return status;
  }
}

bool InterruptedChanges::Pause(absl::Duration pause) {
  const SteadyTime end = After(options_.clock->Now(), pause);
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const absl::Duration left = Until(end, options_.clock->Now());
    if (left <= absl::ZeroDuration()) return true;
    stopped_.WaitUntil(&mu_, SteadyDeadline(left));
  }
  return false;
}

// When the daemon stops, the next server makes the remaining changes.
bool InterruptedChanges::IsStopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_ || store_->IsDraining();
}

absl::Status InterruptedChanges::Make(const InterruptedChange& change) const {
  switch (change.source.kind) {
    case ChangeSource::Kind::kStream:
    case ChangeSource::Kind::kReplica:
      break;
    case ChangeSource::Kind::kFiles:
      return ImportFileAgain(change.model, change.source.text, [this] { return IsStopping(); });
    case ChangeSource::Kind::kCheckpoint:
      return RestoreAgain(change.model, change.source);
  }
  return absl::DataLossError("an import was interrupted, and its sender disconnected");
}

}  // namespace paramshard::server
