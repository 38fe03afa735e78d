// State of a model on this daemon: which one it is, and in what condition.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_STATE_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/journal/journal_content.h"
#include "server/models/replacement.h"
#include "server/models/state_recovery.h"
#include "server/state/committed_state.h"
#include "server/terms/cluster.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"
#include "server/terms/state_condition.h"
#include "server/training/current_commit.h"
#include "server/training/model_journal.h"
#include "server/training/placed_model.h"

namespace paramshard::server {

// Which state the model holds. The generation counts the changes on this daemon; a shard's own moves with it.
struct StateSnapshot {
  StateNumbers numbers;
  Lineage lineage;
  int64_t generation = 0;
};

// All of the state that is not in tensors, while it is held in place for a copy.
struct HeldState {
  StateNumbers numbers;
  int64_t generation = 0;
  std::optional<HistoryParent> parent = {};
  CommitLog::State commits;
  std::vector<ScalingBook::Record> scaling = {};
};

// A rollback, in which all daemons gave up the state for a saved one.
struct Rollback {
  int64_t from_commit_number = 0;
  int64_t commit_number = 0;
  std::string why;
};

// Returns UNAVAILABLE: the state is being copied.
absl::Status BeingCopied(absl::string_view operation, absl::string_view model);

// Keeps history, numbers and condition together, and writes their changes to the journal. It holds up nobody: that no
// trainer is attached while the state is replaced is TrainerGate's work. Thread-safe.
class ModelState {
 public:
  // `model`, `committed` and `journal`, which is null where nothing outlives the server, outlive this.
  ModelState(const PlacedModel& model, CommittedState& committed, ModelJournal* journal, History history,
             int64_t deletion);

  // Goes on with a state that another server has left. Shards have adopted its memory. What breaks a device.
  absl::Status Resume(const InheritedModel& inherited);
  // Makes the model outlive the server from now on. Until then a server that dies leaves nothing of it. Idempotent.
  absl::Status Publish();
  // Tells readers which version the planes have, once they are whole (Publication::Publish).
  void PublishPlanes() const;
  // Takes the place of Publish, before trainers can attach, for a model whose initial values a replica in another
  // daemon is to replace. Until then it is not usable(), and lost for the next server.
  absl::Status AwaitReplica(absl::string_view why);

  // --- What there is to say

  // Returns OK, or DATA_LOSS: a change or a commit broke off in the middle, and the state is neither the old nor the
  // new one. The model then has to be restored or deleted.
  absl::Status usable() const;
  // Returns OK; or DATA_LOSS: it is unknown whether other daemons have applied the commit after the last one; or
  // INTERNAL: the last commit is not in the journal. The state is whole and the last commit's, but trainers must not
  // train on from it: an import settles it.
  absl::Status doubt() const;
  // Returns OK, or UNAVAILABLE: a change was cut off with the server before this one, and is to be made again. Until
  // then other callers cannot use the model.
  absl::Status unfinished() const;
  // Returns OK, or DATA_LOSS: trainers must not train on from what this daemon holds, which a saved state may replace.
  absl::Status loss() const;
  // Returns true if there was no commit since the history began.
  bool untouched() const;
  // Returns true if the state is the initial values: there was no commit, import or restore.
  bool fresh() const;
  // Returns where the model's values come from.
  ValueOrigin origin() const;
  History history() const;
  // Returns the history with the commit number that it began with.
  std::pair<History, int64_t> history_and_begin() const;
  StateSnapshot snapshot() const;
  // snapshot() for a reader. UNAVAILABLE while it is being changed; usable(). `operation` begins the message.
  absl::StatusOr<StateSnapshot> Look(absl::string_view operation) const;
  // Returns the serial number of its name's last deletion at its creation (DeletionMarks).
  int64_t deletion() const;
  // Returns the number of the last epoch that has begun.
  int64_t last_epoch() const;
  // Returns the progress of a restore that is being applied.
  std::optional<RestoreProgress> progress() const;
  // Returns the last rollback in this server.
  std::optional<Rollback> rollback() const;

  // --- Epochs

  // Returns why a trainer may not attach because of the state. OK for a lost state that may come back: node 0 then
  // decides what becomes of the trainer.
  absl::Status CheckMayAttach() const;
  // Returns this node's part of the model, without attached ranks.
  ModelReport Report() const;
  // Begins an epoch with this state, or with the one that a replica is to bring. Errors of epoch_admission.h.
  absl::Status BeginEpoch(const EpochStart& start);
  // Settles what the epoch leaves behind when its commit came to no end. Returns usable(), or else doubt().
  absl::Status EndEpoch(const OpenCommit& commit);

  // --- Copies

  // Holds the state of the last commit in place while it is copied: steps of a rank, and changes, wait until the copy
  // ends (CopyGate). One at a time. ABORTED while a commit is under way: the saver is told when it is over. UNAVAILABLE
  // while the state is being changed; usable().
  absl::StatusOr<HeldState> Hold();

  // --- Changes: StateChanges makes them; TrainerGate waits for them, and cancels them

  // UNAVAILABLE the import lock is held or, unless `again`, a cut-off change is to be made first.
  absl::Status TakeImportLock(ChangeKind kind, bool again);
  void ReleaseImportLock();
  // Returns true if a caller holds the import lock: a restore takes it before it looks at a checkpoint.
  bool is_import_locked() const;
  // Returns UNAVAILABLE while the state is changed, or before a cut-off change is made again.
  absl::Status CheckSettled(absl::string_view operation) const;
  bool is_changing() const;
  // Asks a restore in progress to end soon. A change that fails from now on is left to the next server, if it can make
  // it again.
  void BeginDrain();
  using MakeReplacement = absl::FunctionRef<absl::StatusOr<Replacement>(const PresentState& present)>;
  // Begins a change: readers are held off from then on. UNAVAILABLE another change is in progress, or a copy.
  absl::StatusOr<Replacement> BeginChange(ChangeKind kind, MakeReplacement make, const RestoreWatch& watch);
  // Called before the first byte is written. An error ends the change: the state stays as it was.
  absl::Status BeginWriting(const Replacement& replacement, const absl::Status& begun);
  // Ends a change that was written with `status`. `rollback_why`: why all daemons roll back; empty if they do not.
  absl::StatusOr<History> EndChange(const Replacement& replacement, absl::Status status,
                                    absl::string_view rollback_why);

 private:
  // Returns what readers may read. UNAVAILABLE with what they wait for; usable().
  absl::StatusOr<wire::PublishedVersion> Readable() const;
  bool Untouched() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Fresh() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status Loss() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  StateSnapshot Snapshot() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  PresentState Present() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns history and epochs as the journal records them.
  JournalEpoch EpochOf(const History& history, int64_t history_begin, int64_t generation) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the error for the caller of a change that has failed.
  absl::Status Fail(const Replacement& replacement, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const PlacedModel& model_;
  CommittedState& committed_;
  ModelJournal* const journal_;

  mutable absl::Mutex mu_;
  StateCondition condition_ ABSL_GUARDED_BY(mu_);
  History history_ ABSL_GUARDED_BY(mu_);
  int64_t history_begin_ ABSL_GUARDED_BY(mu_) = 0;  // the commit number that it began with
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t deletion_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool drains_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Rollback> rollback_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_STATE_H_
