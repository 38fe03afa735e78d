#include "server/checkpoints/restoration.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Callers may restore in a loop.
ThrottledLog& RestoreLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

RestoreResult ResultOf(const CheckpointChoice& choice, const checkpoint::Manifest& manifest, const History& history,
                       SteadyTime begin) {
  return {.path = choice.path,
          .save_id = manifest.save_id,
          .step = manifest.step,
          .version = manifest.version,
          .history = history,
          .saved_history = manifest.history,
          .saved_world_size = manifest.world.size,
          .saved_shard_size = manifest.world.shard_size,
          .size_bytes = manifest.size_bytes(),
          .elapsed = absl::FromChrono(SteadyNow() - begin)};
}

void LogRestored(const std::string& model, const RestoreResult& result) {
  RestoreLog().Write(LogLevel::kInfo, "model restored",
                     {{"model", model},
                      {"checkpoint", result.path},
                      {"step", absl::StrCat(result.step)},
                      {"history", result.history.id.ToString()},
                      {"elapsed", absl::FormatDuration(result.elapsed)}});
}

}  // namespace

absl::StatusOr<Restoration> Restoration::Prepare(std::shared_ptr<Model> model, const WantedRestore& wanted,
                                                 RestoreLeader* leader) {
  Restoration restoration(std::move(model), leader);
  restoration.terms_.by_path = wanted.checkpoint.kind == CheckpointRequest::Kind::kPath;
  restoration.terms_.convert_moments = wanted.plan.convert_moments;
  const Model& restored = *restoration.model_;
  ASSIGN_OR_RETURN(restoration.choice_, ChooseCheckpoint(restored.save_dir(), restored.spec().name, wanted.checkpoint));
  ASSIGN_OR_RETURN(restoration.restore_,
                   ModelRestore::Prepare(restoration.model_, restoration.choice_.path, wanted.plan));
  return restoration;
}

absl::StatusOr<Restoration> Restoration::PrepareRollback(std::shared_ptr<Model> model, const std::string& why,
                                                         RestoreLeader* leader) {
  WantedRestore wanted;
  const std::optional<RestoreLeader::Broken> broken = leader->broken(model->spec().name);
  const bool was_asked_for = broken.has_value() && !model->usable().ok();
  if (was_asked_for) {
    wanted = {.checkpoint = {.kind = CheckpointRequest::Kind::kPath, .folder = broken->path},
              .plan = {.convert_moments = broken->convert_moments}};
  }
  ASSIGN_OR_RETURN(Restoration restoration, Prepare(std::move(model), wanted, leader));
  RETURN_IF_ERROR(CheckGoesBack(*restoration.model_, restoration.restore_->manifest()));
  restoration.terms_.was_asked_for = was_asked_for;
  restoration.terms_.creates = true;
  restoration.terms_.rollback_why = why;
  return restoration;
}

absl::StatusOr<Restoration> Restoration::PrepareCreation(std::shared_ptr<Model> model, const WantedRestore& wanted,
                                                         RestoreLeader* leader, std::function<bool()> is_abandoned,
                                                         std::string rollback_why, bool was_asked_for) {
  ASSIGN_OR_RETURN(Restoration restoration, Prepare(std::move(model), wanted, leader));
  restoration.terms_.creates = true;
  restoration.terms_.is_abandoned = std::move(is_abandoned);
  restoration.terms_.rollback_why = std::move(rollback_why);
  restoration.terms_.was_asked_for = was_asked_for;
  return restoration;
}

absl::StatusOr<RestoreResult> Restoration::Run(absl::FunctionRef<absl::Status()> begun) {
  const std::shared_ptr<Model> model = std::move(model_);
  const std::unique_ptr<ModelRestore> restore = std::move(restore_);
  ASSIGN_OR_RETURN(const History history, leader_->Run(*model, choice_, *restore, terms_, begun));
  const RestoreResult result = ResultOf(choice_, restore->manifest(), history, begin_);
  LogRestored(model->spec().name, result);
  return result;
}

absl::StatusOr<RestoreResult> FollowOrder(const std::shared_ptr<Model>& model, FollowingRestore& following,
                                          absl::FunctionRef<absl::Status()> begun) {
  const SteadyTime begin = SteadyNow();
  ASSIGN_OR_RETURN(const OrderedRestore ordered, PrepareOrdered(model, following.order()));
  ASSIGN_OR_RETURN(const History history, ordered.restore->Run(begun, following));
  const RestoreResult result = ResultOf(ordered.choice, ordered.restore->manifest(), history, begin);
  LogRestored(model->spec().name, result);
  return result;
}

}  // namespace paramshard::server
