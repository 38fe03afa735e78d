#include "server/checkpoints/restore_task.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/content_hash.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restore_plan.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Callers may restore in a loop.
ThrottledLog& RestoreLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

// Logs a rollback: it gives up steps that were answered.
void LogRollback(LogLevel level, absl::string_view text, const RestoreTask& task, int64_t from,
                 const std::string& why) {
  Log(level, text,
      {{"model", task.model().spec().name},
       {"from_commit_number", absl::StrCat(from)},
       {"commit_number", absl::StrCat(task.manifest().step)},
       {"saved_history", checkpoint::HashText(task.manifest().history)},
       {"why", why}});
}

}  // namespace

// --- Before anything changes ---

absl::StatusOr<std::unique_ptr<RestoreTask>> RestoreTask::Prepare(std::shared_ptr<Model> model,
                                                                  const std::string& folder, RestoreOrder order,
                                                                  SteadyTime begin) {
  ASSIGN_OR_RETURN(ImportLock lock, ImportLock::BeginRestore(std::move(model)));
  return Prepare(std::move(lock), folder, std::move(order), begin);
}

absl::StatusOr<std::unique_ptr<RestoreTask>> RestoreTask::Prepare(ImportLock lock, const std::string& folder,
                                                                  RestoreOrder order, SteadyTime begin) {
  // Many threads read each file once, from end to end.
  constexpr auto kPageCache = safetensors::RegularFile::PageCache::kAvoided;
  ASSIGN_OR_RETURN(checkpoint::Reader reader,
                   checkpoint::Reader::Open(folder, {.owner = geteuid(), .page_cache = kPageCache}));
  std::unique_ptr<RestoreTask> task(new RestoreTask(std::move(lock), std::move(reader), std::move(order), begin));
  const Model& model = task->model();
  ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(model.spec(), task->reader_.spec(),
                                                         {.convert_moments = task->order_.convert_moments}));
  std::vector<Shard*> shards;
  for (const auto& shard : model.committed().shards) shards.push_back(shard.get());
  ASSIGN_OR_RETURN(task->loader_, CheckpointLoader::Create({.reader = &task->reader_,
                                                            .plan = std::move(plan),
                                                            .spec = &model.spec(),
                                                            .shards = std::move(shards),
                                                            .first_rank = model.world().first_rank}));
  return task;
}

absl::StatusOr<std::unique_ptr<RestoreTask>> RestoreTask::PrepareOrdered(std::shared_ptr<Model> model,
                                                                         const RestoreOrder& order) {
  const SteadyTime begin = SteadyNow();
  const std::string& name = model->spec().name;
  if (model->fingerprint() != order.spec_fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("restore ", DisplayName(name), ": the spec differs from node 0's spec"));
  }
  ASSIGN_OR_RETURN(const CheckpointChoice choice,
                   FindCheckpoint(model->save_dir(), name, {.folder = order.folder, .save_id = order.save_id}));
  ASSIGN_OR_RETURN(std::unique_ptr<RestoreTask> task, Prepare(model, choice.path, order, begin));
  if (task->manifest().save_id != order.save_id) {
    return absl::FailedPreconditionError(absl::StrCat("restore ", DisplayName(name), ": ", choice.path,
                                                      ": the save differs from the one that node 0 chose"));
  }
  if (order.rolls_back() && !order.was_asked_for) RETURN_IF_ERROR(task->CheckRollsBack());
  return task;
}

absl::StatusOr<RestoreResult> RestoreTask::RunOrdered(std::shared_ptr<Model> model, RestoreAgreement& agreement,
                                                      absl::FunctionRef<absl::Status()> begun) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RestoreTask> task, PrepareOrdered(std::move(model), agreement.order()));
  return task->Run(agreement, begun);
}

int RestoreTask::replicas() const { return model().world().world_size / model().topology().shard_size(); }

absl::Status RestoreTask::CheckRollsBack() const {
  if (!model().state().usable().ok() || model().state().fresh()) return absl::OkStatus();
  const History history = model().state().history();
  if (manifest().history == history.id.value) return absl::OkStatus();
  // The checkpoint may also be the state that the history began with, but none before it: an operator may have chosen
  // it.
  const HistoryParent saved{.history = HistoryId{manifest().history}, .commit_number = manifest().step};
  if (history.parent == saved) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "restore ", DisplayName(model().spec().name), ": want a checkpoint of history ", history.id.ToString(),
      ", got step ", manifest().step, " of history ", checkpoint::HashText(manifest().history),
      ", which was saved last; restore the right checkpoint at node 0"));
}

// --- The change ---

absl::StatusOr<RestoreResult> RestoreTask::Run(absl::FunctionRef<absl::Status()> begun) {
  if (const World& world = model().world(); world.rank_count() != world.world_size) {
    return absl::FailedPreconditionError("restore: other daemons hold ranks of the model too");
  }
  RestoreAgreement alone({.model = model().spec().name, .replicas = replicas()});
  return Run(alone, begun);
}

absl::StatusOr<RestoreResult> RestoreTask::Run(RestoreAgreement& agreement, absl::FunctionRef<absl::Status()> begun) {
  const std::string why = agreement.RollbackWhy(model());
  const int64_t from = model().state().snapshot().numbers.commit_number;
  if (!why.empty()) LogRollback(LogLevel::kWarning, "rolling back to checkpoint", *this, from, why);
  ASSIGN_OR_RETURN(const History history, Restore(agreement, why, begun));
  if (!why.empty()) LogRollback(LogLevel::kError, "rolled back to checkpoint", *this, from, why);
  const RestoreResult result = ResultOf(history);
  RestoreLog().Write(LogLevel::kInfo, "model restored",
                     {{"model", model().spec().name},
                      {"checkpoint", result.path},
                      {"step", absl::StrCat(result.step)},
                      {"history", result.history.id.ToString()},
                      {"elapsed", absl::FormatDuration(result.elapsed)}});
  return result;
}

absl::StatusOr<History> RestoreTask::Restore(RestoreAgreement& agreement, const std::string& rollback_why,
                                             absl::FunctionRef<absl::Status()> begun) {
  RestoredState restored = loader_->restored();
  restored.source = {.kind = ChangeSource::Kind::kCheckpoint,
                     .text = agreement.can_redo() ? std::filesystem::absolute(folder()).string() : "",
                     .convert_moments = order_.convert_moments};
  restored.history = agreement.history();
  const RestoreWatch watch{.progress =
                               [&] {
                                 const auto whole = agreement.Whole(loader_->progress());
                                 return RestoreProgress{.done_bytes = whole.done_bytes, .all_bytes = whole.all_bytes};
                               },
                           .cancel =
                               [&] {
                                 loader_->Cancel();
                                 agreement.Cancel();
                               }};
  const RestoreSteps steps{.begin = [&]() -> absl::Status {
                             RETURN_IF_ERROR(begun());
                             return agreement.Agree();
                           },
                           .check_cancelled = [&]() -> absl::Status {
                             RETURN_IF_ERROR(agreement.CheckContinue());
                             return loader_->CheckContinue();
                           },
                           .conclude = [&] { return agreement.Verify(*loader_); },
                           .rollback_why = rollback_why,
                           .leader_creates = agreement.leader_creates()};
  return import_lock_.model().changes().Restore(
      restored, [&] { return agreement.Load(*loader_); }, watch, steps);
}

RestoreResult RestoreTask::ResultOf(const History& history) const {
  return {.path = folder(),
          .save_id = manifest().save_id,
          .step = manifest().step,
          .version = manifest().version,
          .history = history,
          .saved_history = manifest().history,
          .saved_world_size = manifest().world.size,
          .saved_shard_size = manifest().world.shard_size,
          .size_bytes = manifest().size_bytes(),
          .elapsed = absl::FromChrono(SteadyNow() - begin_)};
}

}  // namespace paramshard::server
