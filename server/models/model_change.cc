// Replacement of a model's state.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/models/model.h"

namespace paramshard::server {
namespace {

// The client library attaches again by itself.
absl::Status GoesBackError(absl::string_view model, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("model ", model, ": all daemons roll back to a saved step (", why, "); attach again"));
}

}  // namespace

// --- The turn

absl::Status Model::CheckMayChange(ChangeKind kind) const {
  if (draining_) return drain_reason_;
  RETURN_IF_ERROR(CheckDevices());
  return kind == ChangeKind::kImport ? condition_.usable() : absl::OkStatus();
}

absl::Status Model::BeginTurn(ChangeKind kind) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(condition_.CheckFinished(OperationOf(kind)));
  RETURN_IF_ERROR(CheckMayChange(kind));
  return condition_.TakeTurn(kind);
}

absl::Status Model::BeginImport() { return BeginTurn(ChangeKind::kImport); }

absl::Status Model::BeginRestore() { return BeginTurn(ChangeKind::kRestore); }

absl::Status Model::BeginImportAgain() {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckMayChange(ChangeKind::kImport));
  return condition_.TakeTurn(ChangeKind::kImport);
}

void Model::EndImport() {
  absl::MutexLock lock(&mu_);
  condition_.EndTurn();
}

bool Model::turn_is_taken() const {
  absl::MutexLock lock(&mu_);
  return condition_.turn_is_taken();
}

// --- The change

absl::StatusOr<History> Model::Change(const StateChange& change, absl::FunctionRef<absl::Status()> write) {
  const auto make = [&](const PresentState& present) {
    return Replacement::OfImport(change, present, options_.draw_history);
  };
  return Replace(ChangeKind::kImport, make, write, {}, {});
}

absl::StatusOr<History> Model::Restore(const Restored& restored, absl::FunctionRef<absl::Status()> write,
                                       const RestoreWatch& watch, const RestoreSteps& steps) {
  const auto make = [&](const PresentState& present) {
    return Replacement::OfRestore(restored, present, options_.draw_history);
  };
  return Replace(ChangeKind::kRestore, make, write, watch, steps);
}

absl::StatusOr<History> Model::Replace(ChangeKind kind, MakeReplacement make, absl::FunctionRef<absl::Status()> write,
                                       const RestoreWatch& watch, const RestoreSteps& steps) {
  std::vector<Trainer> let_go;
  const absl::StatusOr<Replacement> begun = BeginChange(kind, make, watch, steps, let_go);
  for (const Trainer& trainer : let_go) Tell(trainer, GoesBackError(spec().name, steps.rollback_why));
  RETURN_IF_ERROR(begun.status());
  const Replacement& replacement = *begun;
  const int64_t from = commit_log_.numbers().commit_number;
  RETURN_IF_ERROR(BeginWriting(replacement, steps.begin ? steps.begin() : absl::OkStatus()));
  // Readers of the old state learn of the change before they meet the first new byte.
  for (const auto& shard : shards_) shard->SetGeneration(replacement.generation);
  absl::Status status = write();
  const auto goes_on = [&] { return steps.goes_on ? steps.goes_on() : absl::OkStatus(); };
  if (status.ok()) status = EncodePlanes(replacement.scaling, goes_on);
  if (status.ok() && steps.conclude) status = steps.conclude();
  for (const auto& shard : shards_) shard->SetVersion(replacement.commits.numbers.version);
  absl::StatusOr<History> history = EndChange(replacement, status);
  if (!history.ok() || steps.rollback_why.empty()) return history;
  absl::MutexLock lock(&mu_);
  rollback_ = {.from_commit_number = from,
               .commit_number = replacement.commits.numbers.commit_number,
               .why = steps.rollback_why};
  return history;
}

std::vector<Trainer> Model::TakeWaiting() {
  std::vector<Trainer> waiting;
  for (auto& [rank, trainer] : std::exchange(waiting_, {})) waiting.push_back(std::move(trainer));
  if (!waiting.empty()) Report();
  changed_.SignalAll();
  return waiting;
}

PresentState Model::present_state() const {
  return {.model = spec().name,
          .spec_fingerprint = fingerprint_,
          .numbers = commit_log_.numbers(),
          .history = history_,
          .untouched = Untouched(),
          .generation = generation_,
          .in_doubt = !condition_.doubt().ok()};
}

absl::StatusOr<Replacement> Model::BeginChange(ChangeKind kind, MakeReplacement make, const RestoreWatch& watch,
                                               const RestoreSteps& steps, std::vector<Trainer>& let_go) {
  const absl::string_view operation = OperationOf(kind);
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckMayChange(kind));
  RETURN_IF_ERROR(AwaitCopied(operation));
  if (!steps.rollback_why.empty()) {
    // The lock is held from here to the beginning of the change: no trainer attaches meanwhile.
    AwaitSettledEpoch();
    let_go = TakeWaiting();
  }
  // A healing is a part of the epoch that its trainers wait for.
  if (kind != ChangeKind::kHealing) RETURN_IF_ERROR(AwaitVacant(operation));
  // Things may have changed while it waited.
  RETURN_IF_ERROR(CheckMayChange(kind));
  RETURN_IF_ERROR(condition_.CheckNotChanging(operation));
  if (copy_gate_.is_copying()) return BeingCopied(operation);
  ASSIGN_OR_RETURN(Replacement replacement, make(present_state()));
  condition_.Begin(kind, watch);
  return replacement;
}

absl::Status Model::BeginWriting(const Replacement& replacement, const absl::Status& begun) {
  absl::MutexLock lock(&mu_);
  absl::Status status = begun;
  if (status.ok() && is_published()) status = journal_->BeginChange(replacement.source);
  if (status.ok()) {
    condition_.Write();
    return status;
  }
  condition_.GiveUp();
  changed_.SignalAll();
  return status;
}

absl::StatusOr<History> Model::EndChange(const Replacement& replacement, absl::Status status) {
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
  generation_ = replacement.generation;
  if (status.ok() && journal_ != nullptr) {
    status = journal_->SetUsable(EpochOf(replacement.history, replacement.history_begin, generation_),
                                 replacement.commits, journaled_state());
  }
  if (!status.ok()) {
    status = Fail(replacement, status);
    // A node without a state reports that before its trainers come, where it may get a state.
    if (may_come_back()) Report();
    return status;
  }
  history_ = replacement.history;
  history_begin_ = replacement.history_begin;
  commit_log_.Restore(replacement.commits);
  condition_.Settle();
  Report();
  return history_;
}

// A drain leaves the change to the next server if the journal has what the change is made from; a change that is made
// again may be left once more.
absl::Status Model::Fail(const Replacement& replacement, const absl::Status& why) {
  const bool again = draining_ || (!condition_.unfinished().ok() && MayPass(why));
  if (again && is_published() && replacement.source.repeatable()) return condition_.CutOff(why);
  condition_.Break(why);
  return condition_.usable();
}

// --- What a change waits for

absl::Status Model::BeingCopied(absl::string_view operation) const {
  return absl::UnavailableError(absl::StrCat(operation, " ", spec().name,
                                             ": the state is being copied for a save; try again when it is through"));
}

absl::Status Model::AwaitCopied(absl::string_view operation) const {
  const SteadyTime deadline = SteadyDeadline(spec().step_timeout.value_or(options_.step_timeout));
  while (copy_gate_.is_copying() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return copy_gate_.is_copying() ? BeingCopied(operation) : absl::OkStatus();
}

}  // namespace paramshard::server
