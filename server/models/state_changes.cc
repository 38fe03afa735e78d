#include "server/models/state_changes.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

// Returns what trainers that wait for an epoch are told, OK if they hold the change up. The client library attaches
// again by itself.
absl::Status Dismissal(absl::string_view model, const RestoreSteps& steps) {
  if (!steps.rollback_why.empty()) {
    return absl::UnavailableError(absl::StrCat("model ", model, ": all daemons roll back to a checkpoint (",
                                               steps.rollback_why, "); attach again"));
  }
  if (!steps.leader_creates) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("model ", model, ": node 0 creates it from a checkpoint; attach again"));
}

}  // namespace

absl::Status StateChanges::CheckMayChange() const {
  RETURN_IF_ERROR(trainers_.CheckOpen());
  return model_.world.CheckDevices();
}

absl::Status StateChanges::LockImport(ChangeKind kind, bool again) {
  return trainers_.WhileOpen([&]() -> absl::Status {
    RETURN_IF_ERROR(model_.world.CheckDevices());
    return state_.TakeImportLock(kind, again);
  });
}

absl::StatusOr<History> StateChanges::Import(const ImportedState& imported, Write write) {
  const auto make = [&](const PresentState& present) {
    return Replacement::OfImport(imported, present, draw_history_);
  };
  return Replace(ChangeKind::kImport, make, write, {}, {});
}

absl::StatusOr<History> StateChanges::Restore(const RestoredState& restored, Write write, const RestoreWatch& watch,
                                              const RestoreSteps& steps) {
  const auto make = [&](const PresentState& present) {
    return Replacement::OfRestore(restored, present, draw_history_);
  };
  return Replace(ChangeKind::kRestore, make, write, watch, steps);
}

absl::StatusOr<History> StateChanges::Heal(const ReplicaState& replica, Write write, const RestoreWatch& watch) {
  const auto make = [&](const PresentState& present) -> absl::StatusOr<Replacement> {
    return Replacement::OfReplica(replica, present);
  };
  return Replace(ChangeKind::kHealing, make, write, watch, {});
}

absl::StatusOr<History> StateChanges::Replace(ChangeKind kind, ModelState::MakeReplacement make, Write write,
                                              const RestoreWatch& watch, const RestoreSteps& steps) {
  ASSIGN_OR_RETURN(const Replacement replacement, Begin(kind, make, watch, steps));
  const absl::Status begun = state_.BeginWriting(replacement, steps.begin ? steps.begin() : absl::OkStatus());
  if (!begun.ok()) {
    trainers_.OnStateChange(/*reports=*/false);
    return begun;
  }
  absl::StatusOr<History> history;
  {
    const Publication::Writing writing(*committed_.publication, Publication::Hold::kBounded);
    const absl::Status written = WriteAll(replacement, write, steps);
    history = state_.EndChange(replacement, written, steps.rollback_why);
  }
  state_.PublishPlanes();
  // A node without a state reports that before its trainers come, where it may get a state.
  trainers_.OnStateChange(/*reports=*/history.ok() || model_.may_come_back);
  return history;
}

absl::StatusOr<Replacement> StateChanges::Begin(ChangeKind kind, ModelState::MakeReplacement make,
                                                const RestoreWatch& watch, const RestoreSteps& steps) {
  RETURN_IF_ERROR(CheckMayChange());
  if (kind == ChangeKind::kImport) RETURN_IF_ERROR(state_.usable());
  if (!committed_.copies.AwaitEnd(SteadyDeadline(model_.step_timeout))) {
    return BeingCopied(OperationOf(kind), model_.name());
  }
  absl::StatusOr<Replacement> replacement;
  const auto begin = [&]() -> absl::Status {
    // Things may have changed while it waited: another copy may be made.
    RETURN_IF_ERROR(model_.world.CheckDevices());
    replacement = state_.BeginChange(kind, make, watch);
    return replacement.status();
  };
  // A healing is a part of the epoch that its trainers wait for.
  RETURN_IF_ERROR(kind == ChangeKind::kHealing
                      ? trainers_.WhileOpen(begin)
                      : trainers_.WhileVacant(OperationOf(kind), Dismissal(model_.name(), steps), begin));
  return replacement;
}

absl::Status StateChanges::WriteAll(const Replacement& replacement, Write write, const RestoreSteps& steps) {
  // Readers of the old state learn of the change before they meet the first new byte.
  for (const auto& shard : committed_.shards) shard->SetGeneration(replacement.generation);
  absl::Status status = write();
  const auto check_cancelled = [&] { return steps.check_cancelled ? steps.check_cancelled() : absl::OkStatus(); };
  if (status.ok()) status = committed_.Encode(replacement.scaling, check_cancelled);
  if (status.ok() && steps.conclude) status = steps.conclude();
  for (const auto& shard : committed_.shards) shard->SetVersion(replacement.commits.numbers.version);
  return status;
}

}  // namespace paramshard::server
