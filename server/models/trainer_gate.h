// The trainers of a model on this daemon: which are attached, and which may attach. Starts and ends their epochs.
#ifndef PARAMSHARD_SERVER_MODELS_TRAINER_GATE_H_
#define PARAMSHARD_SERVER_MODELS_TRAINER_GATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/models/model_state.h"
#include "server/observe/recorder.h"
#include "server/terms/cluster.h"
#include "server/training/epoch.h"
#include "server/training/trainer.h"

namespace paramshard::server {

// The trainer that holds a rank now, for take-over; session 0 without one.
struct RankHolder {
  int64_t session = 0;
  int64_t pid = 0;
  int64_t uid = 0;
};

struct AttachedTrainer {
  Trainer trainer;
  int64_t epoch = 0;  // 0 while it waits
  int64_t last_command = 0;
  std::string waits_for;
};

// The epoch, the trainers and the change of a model at one moment.
struct ModelActivity {
  int64_t epoch = 0;  // last started
  bool running = false;
  std::string last_end;  // "all trainers have detached" if they did
  std::string engine;
  std::vector<AttachedTrainer> trainers;
  int64_t words_bytes = 0;  // per rank with memory
  // By rank of this daemon, while an epoch runs or ends.
  std::vector<int64_t> slots_bytes;
  std::vector<int64_t> scratch_bytes;
  std::optional<RestoreProgress> restore;  // while one is being applied
  std::optional<Rollback> rollback;        // the last one, in this server
  std::vector<int> active_nodes;           // of the running epoch, where others are left out
};

// Thread-safe. Its lock is taken before the one of ModelState.
class TrainerGate {
 public:
  // `state` and what is in `context` outlive the gate.
  TrainerGate(ModelState& state, const EpochContext& context)
      : model_(context.model), state_(state), context_(context) {}
  // Requires Stop().
  ~TrainerGate() = default;

  // Gives a rank a trainer. When every rank of the world has one, an epoch starts. INVALID_ARGUMENT a rank of another
  // daemon; ALREADY_EXISTS naming the holder's pid; UNAVAILABLE once draining and while the state is changed; what
  // broke a device; errors of ModelState::CheckMayAttach.
  absl::Status Attach(Trainer trainer);
  // Ends the epoch of a trainer that is gone, or goes without detaching, unless it has left the epoch. Unknown sessions
  // are ignored. Its on_ended is called.
  void Leave(int64_t session, const absl::Status& why);
  // Does the same for a trainer that waits for an epoch. Returns false, and does nothing, if its epoch has begun.
  bool LeaveIfWaiting(int64_t session, const absl::Status& why);
  // Lets the trainer leave after its `command_count`-th command of the epoch: see Epoch::Detach. A trainer that waits
  // for an epoch leaves at once. An error ends the session. Unknown sessions are ignored.
  absl::Status Detach(int64_t session, int64_t command_count);
  // Takes a command that came over the session's stream. An error ends the session: see Epoch::Submit. Unknown sessions
  // are ignored.
  absl::Status Submit(int64_t session, const v1::Command& command);
  RankHolder HolderOf(int rank) const;

  // The cluster calls these.
  void OnEpochStart(const EpochStart& start);
  // The last command, or end of a step, that all ranks of the world send: see Epoch::SetLastPoint.
  void OnLastCommand(int64_t epoch, int64_t command);
  // Reports the commands that all ranks of this daemon have sent: see Epoch::ReportCommands.
  void OnCommandsWanted(int64_t epoch, const CommandsThrough& unless);
  void OnEpochEnd(int64_t epoch, const absl::Status& why);
  // Tells trainers that wait for an epoch that none starts.
  void OnEpochRefused(const absl::Status& why);

  // Refuses new trainers from now on, and ends the epoch as soon as the commits that all ranks have sent are answered.
  void BeginDrain(const absl::Status& why);
  // Waits until the epoch has ended and a change is done, at most until the deadline: then it ends the epoch. A restore
  // is given up.
  void FinishDrain(SteadyTime deadline);
  void Drain(SteadyTime deadline, const absl::Status& why) {
    BeginDrain(why);
    FinishDrain(deadline);
  }
  // Refuses trainers and changes from now on, with `why`; the cluster hears nothing more of this model. Waits for an
  // epoch that is ending. FAILED_PRECONDITION naming a trainer that is attached; UNAVAILABLE while the state is
  // changed.
  absl::Status Close(const absl::Status& why);
  // Stops all reports of this model to the cluster, also the report of its deletion. Called before the store reports
  // the model as lost.
  void Silence();
  // Ends a running epoch and waits until its thread is gone. The cluster hears nothing.
  void Stop();

  // Returns why no trainer and no change is taken any more: the drain's reason. OK before.
  absl::Status CheckOpen() const;
  // Calls `begin` while no trainer is attached and none can attach. Waits for the end of an epoch that all have left,
  // for as long as a step may take: it may go on elsewhere. Trainers that wait for an epoch get `dismissal` first and
  // leave; if `dismissal` is OK they stay, and count as attached. FAILED_PRECONDITION naming an attached trainer;
  // CheckOpen(); errors of `begin`.
  absl::Status WhileVacant(absl::string_view operation, const absl::Status& dismissal,
                           absl::FunctionRef<absl::Status()> begin);
  // Calls `begin` while no drain can begin: CheckOpen(); errors of `begin`.
  absl::Status WhileOpen(absl::FunctionRef<absl::Status()> begin);
  // Called when the condition of the state has changed. `reports`: reports it to the cluster.
  void OnStateChange(bool reports);

  // Returns true if no epoch runs or ends: no commit is under way, and none comes before trainers attach.
  bool idle() const;
  ModelActivity activity() const;
  // Returns this daemon's world ranks without a trainer.
  std::vector<int> MissingRanks() const;
  // Returns the recorder of this daemon's ranks in the last epoch that has begun; null before the first.
  std::shared_ptr<const Recorder> recorder() const;

 private:
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return epoch_ == nullptr; }
  bool Running() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return epoch_ != nullptr && !epoch_->ended(); }
  // Null while none runs.
  std::shared_ptr<Epoch> current_epoch() const;
  RankHolder HolderLocked(int rank) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the trainers of the epoch that have not left it.
  std::vector<const Trainer*> Present() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Tells trainers that wait for an epoch that they get none. Without the lock.
  void Tell(const std::map<int, Trainer>& trainers, const absl::Status& why) const ABSL_LOCKS_EXCLUDED(mu_);
  // Reports this node's part of the model to the cluster.
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the trainers that wait an epoch. On an error there is no thread for it, and `refused` holds them.
  absl::Status StartEpoch(const EpochStart& start, std::thread& finished, std::map<int, Trainer>& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunEpoch(Epoch& epoch);
  // Returns FAILED_PRECONDITION naming an attached trainer.
  absl::Status CheckVacant(absl::string_view operation) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void AwaitSettledEpoch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const PlacedModel& model_;
  ModelState& state_;
  const EpochContext context_;

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;  // signalled when a rank's holder or epoch_ changes, or a change ends
  std::map<int, Trainer> waiting_ ABSL_GUARDED_BY(mu_);  // by world rank, for the next epoch
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);    // null while none runs
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // and draining_
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status drain_reason_ ABSL_GUARDED_BY(mu_);
  std::string last_end_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Recorder> recorder_ ABSL_GUARDED_BY(mu_);
  std::thread epoch_thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_TRAINER_GATE_H_
