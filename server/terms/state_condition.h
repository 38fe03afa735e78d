// Which condition a model's state is in: whether it is whole, is being replaced, or is lost.
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
#include "server/log/log_throttle.h"

namespace paramshard::server {

enum class ChangeKind : uint8_t {
  kImport,   // of a part of the state, or of all of it
  kRestore,  // it needs nothing of the state that was
  kHealing,  // likewise; by a replica, at the start of an epoch
};
// "import into", "restore", "heal": what begins a message about it.
absl::string_view OperationOf(ChangeKind kind);

struct RestoreProgress {
  int64_t done_bytes = 0;
  int64_t all_bytes = 0;

  // Rounded down. 100 where there is nothing to do.
  int64_t percent() const {
    if (all_bytes <= 0) return 100;
    return static_cast<int64_t>(100.0 * static_cast<double>(done_bytes) / static_cast<double>(all_bytes));
  }
};

// Whether what a change has failed with may pass, so that the same may come to its end when it is tried again.
inline bool MayPass(const absl::Status& why) { return absl::IsUnavailable(why) || absl::IsResourceExhausted(why); }

// Looks at a restore that is under way, and gives it up. Both are called from any thread, and not after the change has
// ended. They do not block.
struct RestoreWatch {
  std::function<RestoreProgress()> progress;
  std::function<void()> cancel;  // at a drain: what is restored would be lost with the daemon
};

// The rules by which a state is replaced, as pure state; its owner knows why a change may not begin, and writes the
// journal:
//
//   kSettled --Resume--> kCutOff
//   kSettled, kCutOff --Begin--> kHeld --GiveUp--> where it was begun
//                                kHeld --Write---> kWriting --Settle--> kSettled
//                                                  kWriting --CutOff--> kCutOff
//                                                  kWriting --Break---> kSettled, and not usable
//
// Beside that it has a turn, which whoever means to replace the state takes long before it begins, and two verdicts,
// which last until a change has settled: usable() and doubt(). Not thread-safe.
class StateCondition {
 public:
  // `model` is its name.
  StateCondition(std::string model, std::shared_ptr<ThrottledLog> log)
      : model_(std::move(model)), log_(std::move(log)) {}

  // --- What there is to say

  // OK, or DATA_LOSS: a change or a commit broke off in the middle.
  const absl::Status& usable() const { return usable_; }
  // OK, or why nobody may train on from a state that is whole.
  const absl::Status& doubt() const { return doubt_; }
  // OK, or UNAVAILABLE: what was cut off is not made again yet.
  absl::Status unfinished() const;
  // OK, or UNAVAILABLE: nobody else gets at it while it is changed, or before what was cut off is made again.
  absl::Status CheckSettled(absl::string_view operation) const;
  // The same of what was cut off alone.
  absl::Status CheckFinished(absl::string_view operation) const;
  // The same of a change that is under way alone.
  absl::Status CheckNotChanging(absl::string_view operation) const;
  bool is_changing() const { return stage_ == Stage::kHeld || stage_ == Stage::kWriting; }
  // Of a restore that is under way.
  std::optional<RestoreProgress> progress() const;

  // --- The turn

  // UNAVAILABLE: somebody has it.
  absl::Status TakeTurn(ChangeKind kind);
  void EndTurn() { turn_.reset(); }
  bool turn_is_taken() const { return turn_.has_value(); }
  // An import, or a restore, has the turn, is under way, or is to be made again.
  bool is_importing() const { return HasBegun(ChangeKind::kImport); }
  bool is_restoring() const { return HasBegun(ChangeKind::kRestore); }

  // --- The change. Each requires the stage that it starts from

  // A server before this one was in the middle of it.
  void Resume(ChangeKind kind);
  // From here on trainers and readers are held off.
  void Begin(ChangeKind kind, const RestoreWatch& watch);
  // Nothing was written: all is as it was.
  void GiveUp();
  // The first byte follows.
  void Write();
  // What was begun is the state now.
  void Settle();
  // It was given up, and is to be made again. Returns what to tell whoever has made it: UNAVAILABLE.
  absl::Status CutOff(const absl::Status& why);
  // It has failed. The first loss stays.
  void Break(const absl::Status& why);
  // Asks a restore that is under way to end soon.
  void Cancel() const;

  // --- What commits leave; no change is under way

  // There is nothing of it, which is no fault of what is here: it awaits a replica of another daemon.
  void AwaitReplica(absl::string_view why);
  // The commit behind `last` was applied in part.
  void BreakCommit(int64_t last, const absl::Status& why);
  // Whether other daemons have applied the commit behind `last` cannot be learnt.
  void SetInDoubt(int64_t last, const absl::Status& why);
  // The last commit is answered, and is not in the journal.
  void SetUnwritten(const absl::Status& why);

 private:
  enum class Stage : uint8_t {
    kSettled,  // nobody replaces it
    kHeld,     // nobody else gets at it, and nothing of it has changed
    kWriting,  // it is partly the old and partly the new one
    kCutOff,   // it was left so, and what was begun is to be made again
  };

  bool HasBegun(ChangeKind kind) const { return turn_ == kind || (stage_ != Stage::kSettled && kind_ == kind); }
  bool is_unfinished() const { return stage_ == Stage::kCutOff || (is_changing() && begun_at_ == Stage::kCutOff); }
  absl::Status BeingChanged(absl::string_view operation) const;
  void EndAt(Stage stage);
  void Lose(absl::string_view what, const absl::Status& why);

  const std::string model_;
  const std::shared_ptr<ThrottledLog> log_;

  std::optional<ChangeKind> turn_;
  Stage stage_ = Stage::kSettled;
  Stage begun_at_ = Stage::kSettled;       // while it is changed
  ChangeKind kind_ = ChangeKind::kImport;  // unless it is settled
  RestoreWatch watch_;                     // while it is changed
  absl::Status usable_;
  absl::Status doubt_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_STATE_CONDITION_H_
