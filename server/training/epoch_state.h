// State that the threads of an epoch share, and how they wake each other.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_STATE_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/data_plane/connect_abort.h"
#include "server/observe/recorder.h"
#include "server/training/current_commit.h"
#include "server/training/epoch_end.h"
#include "server/training/epoch_host.h"
#include "server/training/rank_slot.h"
#include "server/training/sequence.h"

namespace paramshard::server {

// Progress of this daemon at the last point to which all ranks of the world come (Sequence::LastPoint).
struct EpochProgress {
  int64_t point = 0;
  bool more = false;  // a rank has come to a later one
  friend bool operator==(const EpochProgress&, const EpochProgress&) = default;
};

// Changes to tell to a trainer and to the cluster.
struct DepartureUpdate {
  std::optional<int> leaving;  // a rank whose trainer may go
  std::optional<EpochProgress> progress;
  bool empty() const { return !leaving.has_value() && !progress.has_value(); }
};

// A thread takes `mu`, looks at the guarded members or changes them, and calls WakeRunnable() if others may go on by
// that. Ranks are the daemon's own, from 0.
class EpochState final : private TrainerWords {
 public:
  // The references in `context` outlive this.
  explicit EpochState(const EpochContext& context, int64_t epoch);

  SteadyTime Now() const { return context_.model.clock->Now(); }
  bool ended() const ABSL_LOCKS_EXCLUDED(mu);

  // Takes a command that a rank has sent. An error of the sequence ends the epoch.
  void Take(int rank, SentCommand command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Wakes the threads that may go on, and lets trainers go that have detached and are not needed any more.
  void WakeRunnable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends the epoch: see EpochEnd.
  void End(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends it after an error of an engine's call or of a vote.
  void EndOnError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends it with `why` when the commits that all ranks have sent by now are answered. Returns true if they are.
  bool EndAfterCommits(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Called when a commit is answered.
  void FinishAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns true if the fate of a commit is not known here.
  bool CommitOpen() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return sequence.CommitOpen() || commit.answering(); }

  // Lets the rank's trainer leave after its `command_count`-th command. Errors of Epoch::Detach.
  absl::Status Detach(int rank, int64_t command_count) ABSL_LOCKS_EXCLUDED(mu);
  // Sets the last point to which all ranks of the world come.
  void SetLastPoint(int64_t point) ABSL_LOCKS_EXCLUDED(mu);
  // Waits for a departure or progress. Empty: the epoch has ended.
  DepartureUpdate AwaitDepartureUpdate() ABSL_LOCKS_EXCLUDED(mu);

  const std::shared_ptr<Recorder> recorder;
  std::vector<std::unique_ptr<RankSlot>> rank_slots;  // by rank; constant
  ConnectAbort connect_abort;                         // of engines that connect, and of probes of links

  mutable absl::Mutex mu;
  SteadyCondVar work;  // push threads wait here; also Epoch::Run
  Sequence sequence ABSL_GUARDED_BY(mu);
  CurrentCommit commit ABSL_GUARDED_BY(mu);
  EpochEnd end ABSL_GUARDED_BY(mu);

 private:
  // The epoch ends with `why` when this commit (Sequence::LastCommitInFlight) is answered.
  struct LastCommit {
    int64_t commit = 0;
    absl::Status why;
  };

  // TrainerWords
  uint32_t Released(int rank, int slot) const override;
  uint32_t Filled(int rank, int slot) const override;

  void CheckDepartures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  DepartureUpdate TakeDepartureUpdate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns this daemon's progress at the last point, once that is carried out; null before.
  std::optional<EpochProgress> ProgressNow() const ABSL_SHARED_LOCKS_REQUIRED(mu);
  bool LastCommitAnswered() const ABSL_SHARED_LOCKS_REQUIRED(mu);

  const EpochContext context_;
  const int ranks_;
  std::optional<LastCommit> last_commit_ ABSL_GUARDED_BY(mu);
  std::optional<int64_t> last_point_ ABSL_GUARDED_BY(mu);  // to which all ranks come, once one has detached
  std::optional<EpochProgress> told_progress_ ABSL_GUARDED_BY(mu);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_STATE_H_
