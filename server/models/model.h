// A model on this daemon: its shards, its commits, the trainers that are attached, and the epoch that runs.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/model/layout.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/data_plane/engines.h"
#include "server/data_plane/topology.h"
#include "server/device/compute_device.h"
#include "server/device/kept_memory.h"
#include "server/journal/journal_content.h"
#include "server/models/model_budget.h"
#include "server/models/model_saver.h"
#include "server/models/replacement.h"
#include "server/models/state_recovery.h"
#include "server/observe/log_throttle.h"
#include "server/observe/metric_registry.h"
#include "server/state/copy_gate.h"
#include "server/state/scaling_book.h"
#include "server/state/shard.h"
#include "server/terms/cluster.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"
#include "server/terms/state_condition.h"
#include "server/training/epoch.h"
#include "server/training/model_journal.h"
#include "server/training/trainer.h"

namespace paramshard::server {

// The daemon's place in the world.
struct World {
  Cluster* cluster = nullptr;
  std::vector<ComputeDevice*> devices;  // of this daemon; they outlive all users of this world
  int first_rank = 0;
  int world_size = 1;
  EngineSettings engines = {};
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives all users of this world

  int rank_count() const { return static_cast<int>(devices.size()); }
  bool Serves(int rank) const { return rank >= first_rank && rank < first_rank + rank_count(); }
};

// The caller's description of the values of a model that it creates or joins (v1::CreateModelRequest).
struct ValuesToCome {
  absl::uint128 run = 0;           // RunDigest
  bool values_follow = false;      // by an import
  bool all_values_follow = false;  // the import replaces every initial value
  bool takes_any_seed = false;     // a model that is there may have another seed than the spec
};

// Thread-safe.
class Model {
 public:
  struct Options {
    ModelSpec spec;
    World world;  // its cluster outlives the model
    absl::Duration step_timeout;
    const Clock* clock = &Clock::Steady();  // outlives the model
    // Bytes that the daemon may still take. Nothing is allocated when the model needs more.
    int64_t available_bytes = 0;
    std::string save_dir = {};            // folder of all models' checkpoints; empty: none
    const SaverSource* savers = nullptr;  // outlives the model; null: it is never saved
    MovePolicy moves = {};                // of the steps
    // Memory of the state; null: it ends with the process.
    std::unique_ptr<KeptMemory> memory = nullptr;
    // A model that another server has left, which IsRecoverable, or whose change is to be made again: until then it is
    // unfinished(). `memory` is null with it. For Create alone.
    std::unique_ptr<LeftModel> left = nullptr;
    ValuesToCome values = {};  // of one that is created
    int64_t deletion = 0;      // likewise: DeletionMarks::SerialOf
    HistoryIdSource draw_history = RandomHistoryId;
    std::function<absl::Status()> before_answer = [] { return absl::OkStatus(); };  // ModelJournal::BeforeAnswer
    std::shared_ptr<ThrottledLog> log = std::make_shared<ThrottledLog>();
  };

  // Allocates the shards of this daemon's ranks, or adopts them. INVALID_ARGUMENT as Topology::Create says;
  // RESOURCE_EXHAUSTED with needed and free bytes by class; what broke a device; what a saver is refused for. Of memory
  // that was adopted also FAILED_PRECONDITION, where this server has another world or version, and DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Options options);

  // Ends a running epoch and waits until its threads are gone.
  ~Model();

  // Gives a rank a trainer. When every rank of the world has one, an epoch starts. INVALID_ARGUMENT a rank of another
  // daemon; ALREADY_EXISTS naming the holder's pid; UNAVAILABLE once draining and while the state is changed; what
  // broke a device; usable().
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
  // The trainer that holds a rank now, for take-over; 0 without one.
  struct Holder {
    int64_t session = 0;
    int64_t pid = 0;
    int64_t uid = 0;
  };
  Holder HolderOf(int rank) const;

  // The cluster calls these.
  void OnEpochStart(const EpochStart& start);
  void OnLastCommand(int64_t epoch, int64_t command);
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

  // Makes the model outlive the server from now on. Until then a server that dies leaves nothing of it. Idempotent.
  absl::Status Publish();
  // Takes the place of Publish, before trainers can attach, for a model whose initial values a replica in another
  // daemon is to replace. Until then it is not usable(), and lost for the next server.
  absl::Status AwaitReplica(absl::string_view why);
  // Takes the memory from its keeper: it ends with the model. Idempotent; an error leaves all as it was.
  absl::Status DropMemory();
  // Does the same for all pieces but one. On an error some may be dropped.
  absl::Status DropMemoryBut(const std::string& piece);
  // Leaves the memory to the next owner of the model's name if `leave` returns true: from then on DropMemory does
  // nothing. No other thread drops the memory meanwhile.
  void LeaveMemory(absl::FunctionRef<bool()> leave);
  // Lets the cluster hear nothing more of the model, nor of its end: its name is to be lost.
  void Silence();
  // Returns true if the next server can go on with the model.
  bool outlives_server() const;

  // Refuses trainers and changes from now on, with `why`; the cluster hears nothing more of this model. Waits for an
  // epoch that is ending. FAILED_PRECONDITION naming a trainer that is attached; UNAVAILABLE while the state is changed
  // or saved.
  absl::Status Close(const absl::Status& why);

  // Returns the recorder of this daemon's ranks in the last epoch that has begun; null before the first.
  std::shared_ptr<const Recorder> recorder() const;

  using StateChange = ImportedState;
  // Changes the state by `write` while no trainer is attached, then encodes planes and takes the numbers over. Returns
  // the history that begins. Meanwhile trainers and deletions are refused, and readers of the old state are told
  // (PinnedState); nothing else is held up. If `write` fails, or the encoding after it, the state is unknown and the
  // model not usable any more. FAILED_PRECONDITION naming a trainer that is attached; INVALID_ARGUMENT numbers out of
  // order; UNAVAILABLE another change is under way, or the daemon drains, also when it drains meanwhile and the next
  // server can make the change again; what broke a device; usable().
  absl::StatusOr<History> Change(const StateChange& change, absl::FunctionRef<absl::Status()> write);

  using Restored = RestoredState;
  using RestoreProgress = server::RestoreProgress;
  using RestoreWatch = server::RestoreWatch;  // is not called any more when Restore has returned
  // Hooks around the writing, called on the thread of the restore; they may block, within bounds.
  struct RestoreSteps {
    // Called when trainers and readers are held off and nothing has changed: an error leaves the state so.
    std::function<absl::Status()> begin;
    // Called between extents while planes are encoded; an error means that the planes have no use any more, and ends
    // the restore like an error of the writing. Must not block.
    std::function<absl::Status()> goes_on;
    // Called when the planes are encoded. An error ends the restore like an error of the writing.
    std::function<absl::Status()> conclude;
    // Why all daemons roll back to a saved state; empty: a client has asked for the restore. In a rollback, trainers
    // that wait for an epoch are told to come again, and do not hold it up.
    std::string rollback_why;
  };
  // Does the same as Change with all of the state: `write` gives every row of the tensors, `restored` the rest. Amaxes
  // that `restored` does not have are measured. The model is usable afterwards, even if it was not.
  absl::StatusOr<History> Restore(const Restored& restored, absl::FunctionRef<absl::Status()> write,
                                  const RestoreWatch& watch = {}, const RestoreSteps& steps = {});

  // Takes the turn to import or to restore, which one caller at a time holds until EndImport. UNAVAILABLE another
  // caller holds it, the daemon drains, or unfinished(); what broke a device; for an import also usable(), while a
  // restore replaces all of the state. BeginImportAgain repeats a change that was cut off with the server before this
  // one.
  absl::Status BeginImport();
  absl::Status BeginRestore();
  absl::Status BeginImportAgain();
  void EndImport();
  // Returns true if a caller holds the turn: a restore takes it before it looks at a checkpoint.
  bool turn_is_taken() const;

  // Holds the state of the last commit in place while it is copied: steps of a rank wait until ReleaseState, changes
  // until all ranks are released. Returns all of the state that is not in tensors. One at a time. ABORTED while a
  // commit is under way: the saver is told when it is over. UNAVAILABLE while the state is being changed; usable().
  struct HeldState {
    StateNumbers numbers;
    int64_t generation = 0;
    std::optional<HistoryParent> parent = {};
    CommitLog::State commits;
    std::vector<ScalingBook::Record> scaling = {};
  };
  absl::StatusOr<HeldState> HoldState();
  // Releases the rank of this daemon, counted from 0, or all ranks, whether they are copied or never will be.
  void ReleaseState(int rank);
  void ReleaseState();
  // Returns ABORTED if a step has stopped waiting for the copy.
  absl::Status CheckHeld() const;
  // Returns true if only the copy holds back the next step.
  bool copy_is_awaited() const { return copy_gate_.is_awaited(); }
  // Returns how long a step has waited for the last copy.
  absl::Duration copy_stall() const { return copy_gate_.stall(); }
  // Returns true if there was no commit since the history began.
  bool untouched() const;
  // Returns true if no epoch runs or ends: no commit is under way, and none comes before trainers attach.
  bool idle() const;
  // Null where nothing is saved.
  ModelSaver* saver() const { return saver_.get(); }

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

  // Returns true if the state is the initial values: there was no commit, import or restore.
  bool fresh() const;
  // Returns where the model's values come from.
  ValueOrigin origin() const;
  // Returns the serial number of its name's last deletion at its creation (DeletionMarks).
  int64_t deletion() const { return deletion_; }

  // Which state the model holds. The generation counts the changes on this daemon; a shard's own moves with it.
  struct State {
    StateNumbers numbers;
    Lineage lineage;
    int64_t generation = 0;
  };
  State state() const;
  History history() const;
  // state() for a reader. UNAVAILABLE while it is being changed; usable(). `operation` begins the message.
  absl::StatusOr<State> Look(absl::string_view operation) const;

  const ModelSpec& spec() const { return options_.spec; }
  const Layout& layout() const { return *layout_; }
  const World& world() const { return options_.world; }
  const std::string& save_dir() const { return options_.save_dir; }
  const Topology& topology() const { return topology_; }
  // Fingerprint of the spec without initial values. The lineage of a model that still has them includes them.
  uint64_t fingerprint() const { return fingerprint_; }
  // They are in the order of this daemon's ranks.
  const std::vector<std::unique_ptr<Shard>>& shards() const { return shards_; }
  const CommitLog& commit_log() const { return commit_log_; }
  const ScalingBook& scaling_book() const { return scaling_book_; }
  // Counts the histories of amaxes, which lie in host memory whatever the devices are.
  int64_t history_bytes() const { return scaling_book_.history_bytes(); }
  // These two are what ModelBudget counts.
  int64_t slots_bytes() const { return budget_->slots_bytes(); }
  std::vector<int64_t> ScratchBytesByRank() const { return budget_->ScratchBytesByRank(); }
  int64_t image_bytes() const { return saver_ == nullptr ? 0 : saver_->image_bytes(); }
  // Host memory of Shard::KeepPlanes.
  int64_t plane_copy_bytes() const;

  // The last rollback, in which all daemons gave up the state for a saved one.
  struct Rollback {
    int64_t from_commit_number = 0;
    int64_t commit_number = 0;
    std::string why;
  };

  struct AttachedTrainer {
    Trainer trainer;
    int64_t epoch = 0;  // 0 while it waits
    int64_t last_command = 0;
    std::string waits_for;
  };
  // The epoch, the trainers and the change of the model at one moment.
  struct Activity {
    int64_t epoch = 0;  // last started
    bool running = false;
    std::string last_end;  // of an epoch that all trainers have left in order says just that
    std::string engine;
    std::vector<AttachedTrainer> trainers;
    int64_t slots_bytes = 0;  // per rank with memory
    int64_t words_bytes = 0;
    std::vector<int64_t> scratch_bytes;      // by rank of this daemon, while an epoch runs or ends
    std::optional<RestoreProgress> restore;  // while one is being applied
    std::optional<Rollback> rollback;        // the last one, in this server
    std::vector<int> active_nodes;           // of the running epoch, where others are left out
  };
  Activity activity() const;
  // When this server has answered the last commit of the model; unset: none yet.
  std::optional<absl::Time> last_commit_time() const;
  // World ranks of this daemon without a trainer.
  std::vector<int> MissingRanks() const;

 private:
  Model(Options options, Topology topology);
  absl::Status CheckDevices() const;
  // Drops what is kept under the model's name and is none of its pieces.
  void DropStalePieces();
  // Opens the journal, which comes first: memory allocated later belongs to a model that is being made.
  absl::Status OpenJournal(const LeftModel* left);
  absl::Status AllocateShards(const LeftModel* left);
  absl::Status ResumeState(const LeftModel& left);
  void SaveAnswered(const RecoveryPlan& plan);
  // Returns the history and the epochs as the journal records them.
  JournalEpoch EpochOf(const History& history, int64_t history_begin, int64_t generation) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  JournaledState journaled_state() { return {.shards = shards_, .book = &scaling_book_}; }
  // Encodes new masters. What other daemons hold is learnt when an epoch starts. Amaxes in `scaling` take precedence
  // over measured ones.
  absl::Status EncodePlanes(absl::Span<const ScalingBook::Record> scaling,
                            Shard::GoesOn goes_on = ShardArithmetic::AlwaysGoesOn);
  void LogBudget() const;
  void RunEpoch(Epoch& epoch);
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells a trainer that waits for an epoch that it gets none. Without the lock.
  void Tell(const Trainer& trainer, const absl::Status& why) const ABSL_LOCKS_EXCLUDED(mu_);
  // Null while none runs.
  std::shared_ptr<Epoch> current_epoch() const;
  Holder HolderLocked(int rank) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return epoch_ == nullptr; }
  bool Running() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return epoch_ != nullptr && !epoch_->ended(); }
  // Settles what the epoch leaves behind when one of its commits came to no end.
  void Settle(const Epoch& epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The trainers of the epoch that have not left it.
  std::vector<const Trainer*> Present() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  State StateLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status CloseToTrainers(const absl::Status& why);
  absl::Status DropMemory(absl::FunctionRef<absl::Status(KeptMemory& memory)> drop);
  // Returns true if the journal says more than that the model is being made.
  bool is_published() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return journal_ != nullptr && journal_->is_made(); }

  // How replicas heal each other at the start of an epoch, on its thread, in model_healing.cc. Errors of the engines;
  // those of Restore.
  absl::Status SendState(int receiver, Epoch::Options::Engines engines, SteadyTime deadline);
  absl::Status ReceiveState(const std::string& history_id, int donor, Epoch::Options::Engines engines,
                            SteadyTime deadline);
  // Returns ABORTED if there is a state here that the other daemons have not gone on from.
  absl::Status CheckMayHeal(const EpochStart& start, const Healing& healing) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Puts the state under the history that begins. ABORTED if it is not the state that a person has said is right.
  absl::Status ForkHistory(const EpochStart& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reports whose client states of the last commit are kept here.
  void ReportPrevious(ModelReport& report) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Logs the state here, if there is one, that the donor's state replaces.
  void LogGivenUp(int donor) const ABSL_LOCKS_EXCLUDED(mu_);
  void LogHealing(absl::string_view what, int node, SteadyTime begin) const;

  // How the state is replaced, in model_change.cc.
  absl::Status CheckMayChange(ChangeKind kind) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status BeginTurn(ChangeKind kind);
  PresentState present_state() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  using MakeReplacement = absl::FunctionRef<absl::StatusOr<Replacement>(const PresentState& present)>;
  // Puts what `make` gives in the place of the state.
  absl::StatusOr<History> Replace(ChangeKind kind, MakeReplacement make, absl::FunctionRef<absl::Status()> write,
                                  const RestoreWatch& watch, const RestoreSteps& steps);
  // Takes the trainers that wait for an epoch, which get none before the change is done.
  std::vector<Trainer> TakeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns UNAVAILABLE: the state is being copied.
  absl::Status BeingCopied(absl::string_view operation) const;
  // Waits until no copy is made, for as long as a step may take. UNAVAILABLE on a timeout.
  absl::Status AwaitCopied(absl::string_view operation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins a change: readers and trainers are held off from then on. In a rollback of all daemons, trainers that wait
  // are let go.
  absl::StatusOr<Replacement> BeginChange(ChangeKind kind, MakeReplacement make, const RestoreWatch& watch,
                                          const RestoreSteps& steps, std::vector<Trainer>& let_go);
  // Called before the first byte is written. An error ends the change: the state stays as it was.
  absl::Status BeginWriting(const Replacement& replacement, const absl::Status& begun);
  absl::StatusOr<History> EndChange(const Replacement& replacement, absl::Status status);
  // Returns the error for the caller of a change that has failed.
  absl::Status Fail(const Replacement& replacement, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns true if there was no commit since the history began.
  bool Untouched() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Fresh() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  ValueOrigin OriginOfValues() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns OK, or DATA_LOSS: trainers must not train on from what this daemon holds, which a saved state may replace.
  absl::Status StateLoss() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns true if a lost state may come back, from a replica or from a checkpoint: trainers wait for that.
  bool may_come_back() const {
    return topology_.has_replicas() || (topology_.nodes() > 1 && !options_.save_dir.empty());
  }
  // Takes over the history id that all daemons agree on. ABORTED if they have agreed on another state.
  absl::Status AdoptHistory(const EpochStart& start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns FAILED_PRECONDITION naming an attached trainer. AwaitVacant waits for the end of an epoch that all have
  // left, for as long as a step may take: it may go on elsewhere.
  absl::Status CheckVacant(absl::string_view operation) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status AwaitVacant(absl::string_view operation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitSettledEpoch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the trainers that wait an epoch. On an error there is no thread for it, and `refused` holds them.
  absl::Status StartEpoch(const EpochStart& start, std::thread& finished, std::vector<Trainer>& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int local(int rank) const { return rank - options_.world.first_rank; }

  // Constant after Create.
  const Options options_;
  const Topology topology_;
  uint64_t fingerprint_ = 0;
  const Lineage lineage_of_creation_;
  std::unique_ptr<Layout> layout_;
  uint64_t layout_fingerprint_ = 0;
  int64_t deletion_ = 0;
  ScalingBook scaling_book_;
  std::optional<ModelBudget> budget_;
  std::unique_ptr<ModelJournal> journal_;  // null where nothing is kept
  std::vector<std::unique_ptr<Shard>> shards_;
  CommitLog commit_log_;
  CopyGate copy_gate_;
  std::unique_ptr<ModelSaver> saver_;

  std::atomic<int64_t> last_commit_nanoseconds_ = 0;  // of Unix time; 0: none yet

  absl::Mutex dropping_;  // held while the keeper is asked; no other call waits for it
  bool memory_dropped_ ABSL_GUARDED_BY(dropping_) = false;  // or left to another model of that name

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;                        // signalled when a holder of a rank or epoch_ changes
  std::map<int, Trainer> waiting_ ABSL_GUARDED_BY(mu_);  // by world rank, for the next epoch
  std::shared_ptr<Epoch> epoch_ ABSL_GUARDED_BY(mu_);    // null while none runs
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // and draining_
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status drain_reason_ ABSL_GUARDED_BY(mu_);
  StateCondition condition_ ABSL_GUARDED_BY(mu_);
  History history_ ABSL_GUARDED_BY(mu_);
  int64_t history_begin_ ABSL_GUARDED_BY(mu_) = 0;  // the commit number that it began with
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Rollback> rollback_ ABSL_GUARDED_BY(mu_);
  int64_t last_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_end_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Recorder> recorder_ ABSL_GUARDED_BY(mu_);
  std::thread epoch_thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_H_
