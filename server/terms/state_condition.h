// Condition of a model's state: whole, being replaced, or lost.
#ifndef PARAMSHARD_SERVER_TERMS_STATE_CONDITION_H_
#define PARAMSHARD_SERVER_TERMS_STATE_CONDITION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {

enum class ChangeKind : uint8_t {
  kImport,   // of a part of the state, or of all of it
  kRestore,  // of all of the state
  kHealing,  // of all of the state, by a replica, at the start of an epoch
};
// Returns "import into", "restore" or "heal", with which messages about the change begin.
absl::string_view OperationOf(ChangeKind kind);

struct RestoreProgress {
  int64_t done_bytes = 0;
  int64_t all_bytes = 0;

  // Rounded down. 100 if there is nothing to do.
  int64_t percent() const {
    if (all_bytes <= 0) return 100;
    return static_cast<int64_t>(100.0 * static_cast<double>(done_bytes) / static_cast<double>(all_bytes));
  }
};

// Returns true if a change that failed with `why` may succeed when it is tried again.
inline bool MayPass(const absl::Status& why) { return absl::IsUnavailable(why) || absl::IsResourceExhausted(why); }

// Callbacks to watch and cancel a restore in progress. They are called from any thread, never after the change has
// ended, and do not block.
struct RestoreWatch {
  std::function<RestoreProgress()> progress;
  std::function<void()> cancel;  // at a drain: the restored state would be lost with the daemon
};

// State machine of changes, without side effects: its owner knows why a change may not begin, and writes the journal:
//
//   kSettled --Resume--> kCutOff
//   kSettled, kCutOff --Begin--> kHeld --GiveUp--> where it was begun
//                                kHeld --Write---> kWriting --Settle--> kSettled
//                                                  kWriting --CutOff--> kCutOff
//                                                  kWriting --Break---> kSettled, and not usable
//
// Besides the stage it has an import lock, which a change takes long before it begins, and two verdicts, which last
// until a change has settled: usable() and doubt(). Not thread-safe.
class StateCondition {
 public:
  // `model` is its name.
  StateCondition(std::string model, std::shared_ptr<ThrottledLog> log)
      : model_(std::move(model)), log_(std::move(log)) {}

  // --- What there is to say

  // OK, or DATA_LOSS if a change or a commit broke off in the middle.
  const absl::Status& usable() const { return usable_; }
  // OK, or why training may not go on from a whole state.
  const absl::Status& doubt() const { return doubt_; }
  // OK, or UNAVAILABLE if a cut-off change was not made again yet.
  absl::Status unfinished() const;
  // OK, or UNAVAILABLE while the state is changed, or before a cut-off change is made again.
  absl::Status CheckSettled(absl::string_view operation) const;
  // The same for a cut-off change only.
  absl::Status CheckFinished(absl::string_view operation) const;
  // The same for a change in progress only.
  absl::Status CheckNotChanging(absl::string_view operation) const;
  bool is_changing() const { return stage_ == Stage::kHeld || stage_ == Stage::kWriting; }
  // Progress of the restore that is in progress, if any.
  std::optional<RestoreProgress> progress() const;

  // --- The import lock

  // UNAVAILABLE the import lock is held.
  absl::Status TakeImportLock(ChangeKind kind);
  void ReleaseImportLock() { import_lock_.reset(); }
  bool is_import_locked() const { return import_lock_.has_value(); }
  // True if an import, or a restore, holds the import lock, is in progress, or is to be made again.
  bool is_importing() const { return HasBegun(ChangeKind::kImport); }
  bool is_restoring() const { return HasBegun(ChangeKind::kRestore); }

  // --- Changes. Each call requires the stage from which it starts

  // Takes over a change that an earlier server was in the middle of.
  void Resume(ChangeKind kind);
  // Begins a change: trainers and readers are held off from here on.
  void Begin(ChangeKind kind, const RestoreWatch& watch);
  // Ends a change before anything was written.
  void GiveUp();
  // Called before the first byte is written.
  void Write();
  // Ends a change whose state is whole.
  void Settle();
  // Ends a change that is to be made again. Returns UNAVAILABLE, for its caller.
  absl::Status CutOff(const absl::Status& why);
  // Ends a change that has failed. The first loss is kept.
  void Break(const absl::Status& why);
  // Asks a restore in progress to end soon.
  void Cancel() const;

  // --- Failures of commits; no change is in progress

  // The state is missing without a failure here: it awaits a replica of another daemon.
  void AwaitReplica(absl::string_view why);
  // The commit after `last` was applied in part.
  void BreakCommit(int64_t last, const absl::Status& why);
  // It cannot be learnt if other daemons have applied the commit after `last`.
  void SetInDoubt(int64_t last, const absl::Status& why);
  // The last commit is answered, but not in the journal.
  void SetUnwritten(const absl::Status& why);

 private:
  enum class Stage : uint8_t {
    kSettled,  // no change
    kHeld,     // a change holds the state, and has written nothing yet
    kWriting,  // the state is partly old and partly new
    kCutOff,   // the same, but without a change in progress: it is to be made again
  };

  bool HasBegun(ChangeKind kind) const { return import_lock_ == kind || (stage_ != Stage::kSettled && kind_ == kind); }
  bool is_unfinished() const { return stage_ == Stage::kCutOff || (is_changing() && begun_at_ == Stage::kCutOff); }
  absl::Status BeingChanged(absl::string_view operation) const;
  void EndAt(Stage stage);
  void Lose(absl::string_view what, const absl::Status& why);

  const std::string model_;
  const std::shared_ptr<ThrottledLog> log_;

  std::optional<ChangeKind> import_lock_;
  Stage stage_ = Stage::kSettled;
  Stage begun_at_ = Stage::kSettled;       // valid during a change
  ChangeKind kind_ = ChangeKind::kImport;  // valid unless settled
  RestoreWatch watch_;                     // valid during a change
  absl::Status usable_;
  absl::Status doubt_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_STATE_CONDITION_H_
