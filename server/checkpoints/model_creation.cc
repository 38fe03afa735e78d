#include "server/checkpoints/model_creation.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restore_agreement.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {
namespace {

// Callers may create and delete in a loop.
ThrottledLog& CreationLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

// Returns true if a new model begins with a checkpoint: `latest` without checkpoints is a fresh start. Also true for a
// folder that cannot be read: the restore from it reports the error.
bool BeginsWithCheckpoint(const ModelStore& store, const std::string& name,
                          const std::optional<RestoreSource>& wanted) {
  if (!wanted.has_value()) return false;
  if (wanted->checkpoint.kind != CheckpointRequest::Kind::kLatest || store.save_dir().empty()) return true;
  return HasCheckpoint(store.save_dir(), name).value_or(true);
}

using IsGone = ModelStore::IsGone;

// Creates a model with restored state. Other callers that wait for the same model keep the creation going.
absl::StatusOr<CreatedModel> CreateRestored(ModelStore& store, Restores& restores, ModelSpec spec,
                                            const RestoreSource& source, const AnnouncedValues& values,
                                            IsGone is_gone) {
  CreatedModel created;
  const std::string name = spec.name;
  // Trainers of other daemons may wait for an epoch of the model, and are not in the way then.
  const RestoreOrder terms{.creates = true,
                           .rollback_why = std::string(store.lost().Check(name).message()),
                           .was_asked_for = store.lost().SourceOf(name).has_value()};
  const auto is_abandoned = [&] { return is_gone() && !store.IsCreationAwaited(); };
  const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show show) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<RestoreTask> task, restores.Prepare(model, source, terms));
    ASSIGN_OR_RETURN(created.restored, restores.Run(std::move(task), show, is_abandoned));
    return absl::OkStatus();
  };
  absl::StatusOr<ModelStore::Created> made = store.CreateOrJoin(std::move(spec), fill, is_gone, values);
  restores.EndRollback(name, made.status());
  if (!made.ok() && !absl::IsCancelled(made.status())) {
    CreationLog().Write(LogLevel::kError, "failed to restore", {{"model", name}, {"why", made.status().ToString()}});
  }
  ASSIGN_OR_RETURN(created.model, std::move(made));
  return created;
}

// Creates a model with the state that node 0 has ordered.
absl::StatusOr<CreatedModel> CreateOrdered(ModelStore& store, Restores& restores, ModelSpec spec, absl::uint128 order,
                                           const AnnouncedValues& values, IsGone is_gone) {
  CreatedModel created;
  RestoreAgreement* taken = nullptr;
  const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show show) -> absl::Status {
    ASSIGN_OR_RETURN(taken, restores.TakeOrdered(model->spec().name, order));
    ASSIGN_OR_RETURN(created.restored, RestoreTask::RunOrdered(model, *taken, show));
    return absl::OkStatus();
  };
  const std::string name = spec.name;
  bool gave_up = false;
  absl::StatusOr<ModelStore::Created> made = store.CreateOrJoin(
      std::move(spec), fill, [&] { return gave_up = is_gone(); }, values);
  // Ends only now: the model is found while it is filled, and the next order would be carried out on a model that may
  // be dropped.
  if (taken != nullptr) restores.End(*taken, made.status());
  // Node 0 does not know yet that the model could not be made. If the caller disconnected, the order stays for the next
  // creation.
  if (taken == nullptr && !made.ok() && !gave_up) restores.RefuseOrder(name, order, made.status());
  ASSIGN_OR_RETURN(created.model, std::move(made));
  return created;
}

// Why a model begins with its initial values.
enum class FreshStart : uint8_t {
  kUnsaid,        // no restore was requested
  kNoCheckpoint,  // there is no checkpoint to restore
  kAsked,         // the caller requested no restore
};

void LogFreshStart(const ModelStore& store, const std::string& name, FreshStart why) {
  if (why == FreshStart::kNoCheckpoint) {
    return CreationLog().Write(LogLevel::kInfo, "created with initial values: no checkpoint to restore",
                               {{"model", name}, {"save_dir", store.save_dir()}});
  }
  if (store.save_dir().empty() || !HasCheckpoint(store.save_dir(), name).value_or(false)) return;
  if (why == FreshStart::kAsked) {
    return CreationLog().Write(LogLevel::kInfo, "created with initial values, as requested; its checkpoints stay",
                               {{"model", name}, {"save_dir", store.save_dir()}});
  }
  CreationLog().Write(LogLevel::kWarning, "model starts with initial values although it has checkpoints",
                      {{"model", name}, {"save_dir", store.save_dir()}, {"instead", "--restore=latest"}});
}

// Creates a model with initial values, also at other daemons that wait for this daemon's answer.
absl::StatusOr<CreatedModel> CreateFresh(ModelStore& store, Restores& restores, ModelSpec spec, FreshStart why,
                                         const AnnouncedValues& values, IsGone is_gone) {
  CreatedModel created;
  ASSIGN_OR_RETURN(created.model, store.CreateOrJoin(std::move(spec), is_gone, values));
  const std::string& name = created.model.model->spec().name;
  if (!created.model.created) return created;
  LogFreshStart(store, name, why);
  restores.OnCreatedFresh(name);
  return created;
}

// Creates a model whose state is to come from a replica in another daemon.
absl::StatusOr<CreatedModel> CreateToBeHealed(ModelStore& store, Restores& restores, ModelSpec spec,
                                              const AnnouncedValues& values, IsGone is_gone) {
  CreatedModel created;
  const std::string lost = store.lost().WhyOf(spec.name);
  ASSIGN_OR_RETURN(
      created.model,
      store.CreateToBeHealed(std::move(spec), lost.empty() ? "it was started without one" : lost, is_gone, values));
  if (!created.model.created) return created;
  const std::string& name = created.model.model->spec().name;
  CreationLog().Write(LogLevel::kInfo, "a replica will heal the model when all trainers are there", {{"model", name}});
  restores.OnCreatedFresh(name);
  return created;
}

// Returns true if the model was lost with the previous server, and other daemons may hold replicas of it. After a
// restore that was cut off no daemon has a state: the restore is made again.
bool MayBeHealed(const ModelStore& store, const ModelSpec& spec) {
  const World& world = store.world();
  const bool is_one_of_several = world.rank_count() != world.world_size;
  return is_one_of_several && spec.shard_size != world.world_size && !store.lost().Check(spec.name).ok() &&
         !store.lost().WasBeingRestored(spec.name);
}

// Joins a model that another caller was creating a moment ago.
absl::StatusOr<CreatedModel> Join(ModelStore& store, ModelSpec spec, const AnnouncedValues& values, IsGone is_gone) {
  const std::string name = spec.name;
  const auto fail = [&](const std::shared_ptr<Model>&, ModelStore::Show) {
    return absl::UnavailableError(
        absl::StrCat("create model ", DisplayName(name), ": another creation of it has failed; try again"));
  };
  CreatedModel joined;
  ASSIGN_OR_RETURN(joined.model, store.CreateOrJoin(std::move(spec), fail, is_gone, values));
  return joined;
}

absl::StatusOr<CreatedModel> CreateFollowing(ModelStore& store, Restores& restores, ModelSpec spec, bool wants_restore,
                                             const AnnouncedValues& values, IsGone is_gone) {
  Restores::Answer answer;
  if (wants_restore || restores.FindOrder(spec.name).has_value()) {
    ASSIGN_OR_RETURN(answer, restores.AwaitOrder(spec.name, is_gone));
  }
  if (answer.order.has_value()) return CreateOrdered(store, restores, std::move(spec), *answer.order, values, is_gone);
  if (answer.is_here) return Join(store, std::move(spec), values, is_gone);
  if (answer.heals) return CreateToBeHealed(store, restores, std::move(spec), values, is_gone);
  const FreshStart why = wants_restore ? FreshStart::kNoCheckpoint : FreshStart::kUnsaid;
  return CreateFresh(store, restores, std::move(spec), why, values, is_gone);
}

}  // namespace

absl::StatusOr<CreatedModel> CreateOrRestore(ModelStore& store, Restores& restores, ModelSpec spec,
                                             const std::optional<RestoreSource>& wanted,
                                             absl::FunctionRef<bool()> is_gone, const AnnouncedValues& values) {
  if (wanted.has_value() && wanted->checkpoint.kind == CheckpointRequest::Kind::kNone) {
    return CreateFresh(store, restores, std::move(spec), FreshStart::kAsked, values, is_gone);
  }
  const bool wants_latest = !wanted.has_value() || wanted->checkpoint.kind == CheckpointRequest::Kind::kLatest;
  if (wants_latest && MayBeHealed(store, spec)) {
    return CreateToBeHealed(store, restores, std::move(spec), values, is_gone);
  }
  // A model that this daemon has lost begins with a checkpoint, also if the caller does not ask for it.
  const std::optional<RestoreSource> source = wanted.has_value() ? wanted : restores.RollbackSource(spec.name);
  if (!restores.leads()) {
    return CreateFollowing(store, restores, std::move(spec), source.has_value(), values, is_gone);
  }
  if (BeginsWithCheckpoint(store, spec.name, source)) {
    return CreateRestored(store, restores, std::move(spec), *source, values, is_gone);
  }
  const FreshStart why = source.has_value() ? FreshStart::kNoCheckpoint : FreshStart::kUnsaid;
  return CreateFresh(store, restores, std::move(spec), why, values, is_gone);
}

}  // namespace paramshard::server
