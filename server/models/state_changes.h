// Changes of a model's state from outside: imports, restores and healings, one at a time.
#ifndef PARAMSHARD_SERVER_MODELS_STATE_CHANGES_H_
#define PARAMSHARD_SERVER_MODELS_STATE_CHANGES_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/models/model_state.h"
#include "server/models/replacement.h"
#include "server/models/trainer_gate.h"
#include "server/state/committed_state.h"
#include "server/terms/history.h"
#include "server/terms/state_condition.h"
#include "server/training/placed_model.h"

namespace paramshard::server {

// Hooks around the writing of a restore, called on its thread; they may block, within bounds.
struct RestoreSteps {
  // Called when trainers and readers are held off and nothing has changed: an error leaves the state so.
  std::function<absl::Status()> begin;
  // Called between extents while planes are encoded; an error means that the planes have no use any more, and ends
  // the restore like an error of the writing. Must not block.
  std::function<absl::Status()> check_cancelled;
  // Called when the planes are encoded. An error ends the restore like an error of the writing.
  std::function<absl::Status()> conclude;
  // Why all daemons roll back to a saved state; empty: a client has asked for the restore. In a rollback, trainers
  // that wait for an epoch are told to come again, and do not hold it up.
  std::string rollback_why;
  // Node 0 creates the model from a checkpoint: trainers that wait for an epoch are told to come again too.
  bool leader_creates = false;
};

// A change holds off trainers (TrainerGate), readers (PinnedState) and deletions while it writes; nothing else is held
// up. If it fails, or the encoding after it, the state is unknown and the model not usable any more. Thread-safe.
class StateChanges {
 public:
  // All outlive this.
  StateChanges(const PlacedModel& model, CommittedState& committed, ModelState& state, TrainerGate& trainers,
               HistoryIdSource draw_history)
      : model_(model),
        committed_(committed),
        state_(state),
        trainers_(trainers),
        draw_history_(std::move(draw_history)) {}

  // Takes the import lock, for an import or a restore; one caller at a time holds it until ReleaseImportLock
  // (ImportLock). UNAVAILABLE another caller holds it, the daemon drains, or unfinished(); what broke a device; for an
  // import also usable(), while a restore replaces all of the state. BeginImportAgain repeats a change that was cut off
  // with the server before this one.
  absl::Status BeginImport() { return LockImport(ChangeKind::kImport, /*again=*/false); }
  absl::Status BeginRestore() { return LockImport(ChangeKind::kRestore, /*again=*/false); }
  absl::Status BeginImportAgain() { return LockImport(ChangeKind::kImport, /*again=*/true); }
  void ReleaseImportLock() { state_.ReleaseImportLock(); }

  using Write = absl::FunctionRef<absl::Status()>;
  // Changes the state by `write` while no trainer is attached, then encodes planes and takes the numbers over. Returns
  // the history that begins. FAILED_PRECONDITION naming a trainer that is attached; INVALID_ARGUMENT numbers out of
  // order; UNAVAILABLE another change is under way, or the daemon drains, also when it drains meanwhile and the next
  // server can make the change again; what broke a device; usable().
  absl::StatusOr<History> Import(const ImportedState& imported, Write write);
  // Does the same with all of the state: `write` gives every row of the tensors, `restored` the rest. Amaxes that
  // `restored` does not have are measured. The model is usable afterwards, even if it was not. `watch` is not called
  // any more when this has returned.
  absl::StatusOr<History> Restore(const RestoredState& restored, Write write, const RestoreWatch& watch = {},
                                  const RestoreSteps& steps = {});
  // Does the same with a replica of another daemon, on the thread of the epoch whose trainers wait for it.
  absl::StatusOr<History> Heal(const ReplicaState& replica, Write write, const RestoreWatch& watch);

 private:
  absl::Status LockImport(ChangeKind kind, bool again);
  absl::Status CheckMayChange() const;
  // Puts what `make` gives in the place of the state.
  absl::StatusOr<History> Replace(ChangeKind kind, ModelState::MakeReplacement make, Write write,
                                  const RestoreWatch& watch, const RestoreSteps& steps);
  absl::StatusOr<Replacement> Begin(ChangeKind kind, ModelState::MakeReplacement make, const RestoreWatch& watch,
                                    const RestoreSteps& steps);
  absl::Status WriteAll(const Replacement& replacement, Write write, const RestoreSteps& steps);

  const PlacedModel& model_;
  CommittedState& committed_;
  ModelState& state_;
  TrainerGate& trainers_;
  const HistoryIdSource draw_history_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_STATE_CHANGES_H_
