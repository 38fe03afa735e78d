#include "server/models/model_takeover.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/device/kept_memory.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Pause between two attempts to take over a model for which there is no memory.
constexpr absl::Duration kPauseForRoom = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<ModelTakeover::Taken> ModelTakeover::TakeOver(const std::string& name,
                                                             KeptStore::Descriptors pieces) const {
  for (bool is_first = true;; is_first = false) {
    absl::StatusOr<Taken> taken = TakeOverOnce(name, std::move(pieces));
    if (!absl::IsResourceExhausted(taken.status()) || options_.clock.Now() >= options_.deadline) return taken;
    if (is_first) {
      options_.log.Write(LogLevel::kWarning, "model takeover waits for free memory",
                         {{"model", name}, {"why", taken.status().ToString()}});
    }
    options_.pause(kPauseForRoom);
    ASSIGN_OR_RETURN(pieces, KeptMemory::TakePieces(name, options_.kept));
  }
}

absl::StatusOr<ModelTakeover::Taken> ModelTakeover::TakeOverOnce(const std::string& name,
                                                                 KeptStore::Descriptors pieces) const {
  ASSIGN_OR_RETURN(InheritedModel inherited, InheritedModel::Read(name, &options_.kept, std::move(pieces)));
  const RecoveryPlan plan = inherited.plan;
  if (plan.action == RecoveryAction::kDrop) {
    RETURN_IF_ERROR(inherited.memory->Drop());
    return Taken();
  }
  if (IsOfSeveral(plan)) {
    // All daemons make the restore again when trainers come.
    const std::string why = "a restore of several daemons was interrupted";
    options_.lost.Report(*options_.world.cluster, name, why);
    options_.lost.Add(name, why, plan.change, /*was_restored=*/true);
    return Taken();
  }
  absl::StatusOr<std::shared_ptr<Model>> model = Resume(name, std::move(inherited));
  if (absl::IsDataLoss(model.status())) {
    const absl::string_view why = model.status().message();
    options_.lost.Report(*options_.world.cluster, name, why);
    const bool was_restored = plan.change.has_value() && plan.change->kind == ChangeSource::Kind::kCheckpoint;
    options_.lost.Add(name, why, std::nullopt, was_restored);
    return Taken();
  }
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat("model ", name, ": ", model.status().message()));
  }
  options_.log.Write(LogLevel::kInfo, "model taken over",
                     {{"model", name},
                      {"commit_number", absl::StrCat((*model)->committed().commits.numbers().commit_number)},
                      {"recovery", RecoveryActionName(plan.action)},
                      {"interrupted_bands", absl::StrCat(TornBands(plan))}});
  Taken taken{.model = *std::move(model)};
  if (plan.action == RecoveryAction::kRedoChange) taken.interrupted = plan.change;
  return taken;
}

bool ModelTakeover::IsOfSeveral(const RecoveryPlan& plan) const {
  return plan.action == RecoveryAction::kRedoChange && plan.change->kind == ChangeSource::Kind::kCheckpoint &&
         options_.world.rank_count() != options_.world.world_size;
}

absl::StatusOr<std::shared_ptr<Model>> ModelTakeover::Resume(const std::string& name, InheritedModel inherited) const {
  ASSIGN_OR_RETURN(ModelSpec spec, inherited.Spec());
  if (spec.name != name) return absl::DataLossError(absl::StrCat("its journal belongs to model ", spec.name));
  if (inherited.plan.action == RecoveryAction::kQueryNode0) {
    RETURN_IF_ERROR(inherited.AskNode0(spec, *options_.world.cluster));
    if (inherited.plan.action == RecoveryAction::kDataLoss) return absl::DataLossError(inherited.plan.loss);
  }
  Model::Options options = options_.options_for(std::move(spec));
  options.inherited = std::make_unique<InheritedModel>(std::move(inherited));
  return Model::Create(std::move(options));
}

}  // namespace paramshard::server
