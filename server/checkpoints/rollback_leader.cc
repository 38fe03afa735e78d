#include "server/checkpoints/rollback_leader.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restoration.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Trainers may come again in a loop.
ThrottledLog& RollbackLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

// Returns the error for trainers: the reason why the epoch does not start, and why no daemon goes back. Trainers come
// again by themselves if the cause is temporary.
absl::Status NotGoneBack(const absl::Status& why, const absl::Status& status) {
  const bool passes = absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  const absl::StatusCode code = passes ? absl::StatusCode::kUnavailable : why.code();
  return absl::Status(code, absl::StrCat(why.message(), "; no daemon goes back to a saved step: ", status.message()));
}

absl::Status RollBack(const std::shared_ptr<Model>& model, const absl::Status& why, RestoreLeader* leader) {
  ASSIGN_OR_RETURN(Restoration restoration, Restoration::PrepareRollback(model, std::string(why.message()), leader));
  const absl::Status status = restoration.Run([] { return absl::OkStatus(); }).status();
  const std::optional<RestoreLeader::Broken> broken = leader->broken(model->spec().name);
  // The restore is repeated when that daemon is back.
  if (!status.ok() && broken.has_value() && broken->passes) return absl::UnavailableError(status.message());
  return status;
}

}  // namespace

RollbackLeader::~RollbackLeader() {
  {
    absl::MutexLock lock(&mu_);
    while (!works_.empty()) changed_.Wait(&mu_);
  }
  JoinFinished();
}

void RollbackLeader::JoinFinished() {
  std::vector<std::thread> finished;
  {
    absl::MutexLock lock(&mu_);
    finished = std::exchange(finished_, {});
  }
  for (std::thread& thread : finished) thread.join();
}

void RollbackLeader::Begin(const std::string& model, const absl::Status& why) {
  absl::Status started;
  {
    absl::MutexLock lock(&mu_);
    if (works_.contains(model)) return;
    absl::StatusOr<std::thread> thread =
        StartThread(absl::StrCat("a rollback of ", DisplayName(model)), [this, model, why] { Work(model, why); });
    started = thread.status();
    if (started.ok()) works_.emplace(model, *std::move(thread));
  }
  if (!started.ok()) options_.leader->EndRollback(model, started);
}

void RollbackLeader::Work(const std::string& model, const absl::Status& why) {
  // Joins here, because the caller of Begin may hold locks that finished rollbacks still need.
  JoinFinished();
  const std::optional<absl::Status> status = GoBack(model, why);
  {
    // This comes first: a new need from here on begins another rollback.
    absl::MutexLock lock(&mu_);
    finished_.push_back(std::move(works_[model]));
    works_.erase(model);
  }
  if (status.has_value()) {
    // Creations wait for the end of a temporary cause.
    if (!status->ok() && !absl::IsUnavailable(*status)) options_.leader->Refuse(model, *status);
    options_.leader->EndRollback(model, *status);
  }
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

std::optional<absl::Status> RollbackLeader::GoBack(const std::string& name, const absl::Status& why) {
  const absl::StatusOr<std::shared_ptr<Model>> model = options_.store->Find(name);
  if (!model.ok() && RollbackOf(*options_.store, name).has_value()) return std::nullopt;
  const absl::Status status = model.ok() ? RollBack(*model, why, options_.leader) : model.status();
  if (status.ok()) return status;
  const absl::Status told = NotGoneBack(why, status);
  RollbackLog().Write(LogLevel::kError, "failed to go back to a saved step",
                      {{"model", name}, {"why", told.ToString()}});
  return told;
}

std::optional<WantedRestore> RollbackOf(const ModelStore& store, const std::string& model) {
  const bool is_one_of_several = store.world().rank_count() != store.world().world_size;
  if (store.CheckLost(model).ok() || store.save_dir().empty() || !is_one_of_several) return std::nullopt;
  if (const std::optional<ChangeSource> cut_off = store.CutOffRestore(model); cut_off.has_value()) {
    return WantedRestore{.checkpoint = {.kind = CheckpointRequest::Kind::kPath, .folder = cut_off->text},
                         .plan = {.convert_moments = cut_off->convert_moments}};
  }
  if (!HasCheckpoint(store.save_dir(), model).value_or(true)) return std::nullopt;
  return WantedRestore();
}

}  // namespace paramshard::server
