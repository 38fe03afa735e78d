// The models of a daemon, by name.
#ifndef PARAMSHARD_SERVER_STORE_MODEL_STORE_H_
#define PARAMSHARD_SERVER_STORE_MODEL_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/kept_store.h"
#include "server/store/creation_turns.h"
#include "server/store/deletion_marks.h"
#include "server/store/lost_models.h"
#include "server/store/model.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Hears what other daemons say of restores. It returns at once, and is never called while a call into the cluster is on
// the stack.
class RestoreListener {
 public:
  virtual ~RestoreListener() = default;
  virtual void OnRestoreNews(const RestoreNews& news) = 0;
};

// Thread-safe. Passes on what the cluster says. A model lives until it is deleted and the last call on it has returned.
class ModelStore : public EpochListener {
 public:
  struct Options {
    World world;  // its cluster outlives the store
    absl::Duration step_timeout = absl::Seconds(60);
    const Clock* clock = &Clock::Steady();  // outlives the store
    // Most bytes that models may take together; 0: what the devices have available.
    int64_t memory_limit_bytes = 0;
    // The folder that checkpoints lie in; empty: there are none. Nothing is looked at here.
    std::string save_dir = {};
    const SaverSource* savers = nullptr;  // outlives the store and its models; null: nothing is saved
    MovePolicy moves = {};                // of the models' steps
    KeptStore* kept = nullptr;            // what models outlive the server in; outlives the store; null: nothing
    HistoryIdSource draw_history = RandomHistoryId;
    std::function<absl::Status()> before_answer = [] { return absl::OkStatus(); };  // ModelJournal::BeforeAnswer
    // For how long TakeOver tries again where there is no memory: trainers of the server before have its planes and
    // slots mapped until they hear of its end. Less than a daemon that is told to stop while it starts may take.
    absl::Duration room_timeout = absl::Seconds(20);
    // Waits between two attempts; tests move their clock instead.
    std::function<void(absl::Duration pause)> pause = [](absl::Duration pause) { absl::SleepFor(pause); };
  };

  explicit ModelStore(Options options);

  // It outlives the store or is reset with null, which waits for a call in progress. Without one, orders are refused.
  void SetRestoreListener(RestoreListener* listener);
  ~ModelStore() override;

  // Takes over what another server has left in `kept`, before anything else is asked: models go on from their last
  // commit, or from the one that was decided. Of one that is lost every later call says why, until it is created with a
  // restore, or deleted; what is left of it stays kept until then, so that the next server says so too. Returns changes
  // that were cut off, to be made again: their models are here, Model::unfinished(). FAILED_PRECONDITION naming a model
  // that this server cannot go on with, because of its devices or its version: it stays for one that can.
  // RESOURCE_EXHAUSTED naming one whose memory was not to be had within Options::room_timeout: it stays, too.
  struct CutOffChange {
    std::shared_ptr<Model> model;
    ChangeSource source;
  };
  absl::StatusOr<std::vector<CutOffChange>> TakeOver();
  // It was made again, or has failed for good: then the model is lost, and the next server tries, as it does where the
  // daemon drains.
  void FinishChange(const std::shared_ptr<Model>& model, const absl::Status& status);

  struct Created {
    std::shared_ptr<Model> model;
    bool created = false;
  };
  // Creates a model, or finds the one of that name when its spec is equal: but for initial values and seed, unless it
  // still has initial values, and some of them are to stay. One is created at a time; a caller who is
  // gone waits no longer for its turn. ALREADY_EXISTS names the first difference; ABORTED the caller has gone.
  using IsGone = CreationTurns::IsGone;
  absl::StatusOr<Created> CreateOrJoin(ModelSpec spec, IsGone is_gone = IsNeverGone, const ValuesToCome& values = {});
  // The same, but a model that is created gets its state from `fill`, which calls `show` as soon as nobody can attach
  // to it any more: from then on others see it. Whoever would join it, or create another one, waits until it is full.
  // When `fill` fails there is no model, and its error is returned. `show` is UNAVAILABLE once draining.
  using Show = absl::FunctionRef<absl::Status()>;
  using Fill = absl::FunctionRef<absl::Status(const std::shared_ptr<Model>& model, Show show)>;
  absl::StatusOr<Created> CreateOrJoin(ModelSpec spec, Fill fill, IsGone is_gone = IsNeverGone,
                                       const ValuesToCome& values = {});
  // The same of a model whose state another daemon's replica is to be, also of one that is lost; `why` this daemon has
  // none (Model::AwaitReplica).
  absl::StatusOr<Created> CreateToBeHealed(ModelSpec spec, absl::string_view why, IsGone is_gone = IsNeverGone,
                                           const ValuesToCome& values = {});
  // Whether a creation that is under way is waited for by others than its own caller, who want the same model.
  bool IsCreationAwaited() const { return turns_.IsAwaited(); }

  // Also one that is shown while it fills. NOT_FOUND names models that there are: a few, and how many more.
  absl::StatusOr<std::shared_ptr<Model>> Find(absl::string_view name) const;
  std::vector<std::shared_ptr<Model>> List() const;
  // Models that were lost with the server before this one: what every call on them answers, by name.
  std::map<std::string, absl::Status, std::less<>> ListLost() const { return lost_.List(); }
  // The same of one of them; OK for any other name.
  absl::Status CheckLost(absl::string_view name) const { return lost_.Check(name); }
  // Why, in a few words; empty for any other name.
  std::string WhyLost(absl::string_view name) const { return lost_.WhyOf(name); }
  // What node 0 was restoring at all daemons when its server before this one died.
  std::optional<ChangeSource> CutOffRestore(absl::string_view name) const { return lost_.SourceOf(name); }
  // Whether it was lost in a restore of all daemons, at whatever node.
  bool WasBeingRestored(absl::string_view name) const { return lost_.WasBeingRestored(name); }

  // Waits for an epoch that is ending; other models can be created and deleted meanwhile. A repeated call with the same
  // request id answers like the first. FAILED_PRECONDITION while a trainer is attached; INVALID_ARGUMENT; UNAVAILABLE
  // while the state is changed or saved, or a lost model is created anew.
  absl::Status Delete(const std::string& name, const std::string& request_id);

  // Which saves are made before a drain is through.
  enum class DrainSaves : uint8_t {
    kUnsaved,   // those under way, and where the configuration says so of what no save has (ModelSaver::Drain)
    kUnderWay,  // no other one begins: the models go on in the next server
  };
  // Refuses new models, lets commits in flight finish until the deadline, and ends all epochs, each as soon as it may.
  // Then it saves, for as long as that may take (SaverSource::drain_timeout).
  void Drain(SteadyTime deadline, const absl::Status& why, DrainSaves saves = DrainSaves::kUnsaved);

  bool IsDraining() const;

  // The next server has none of these models. After Drain: one that it could not save stays, for nobody else has it.
  void DropKept() const;
  // Whether the drain was to save a model, and could not: the log has named it.
  bool left_unsaved() const { return left_unsaved_; }

  const World& world() const { return options_.world; }
  const std::string& save_dir() const { return options_.save_dir; }

  // EpochListener
  void OnEpochStart(const std::string& model, const EpochStart& start) override;
  void OnLastCommand(const std::string& model, int64_t epoch, int64_t command) override;
  void OnCommandsWanted(const std::string& model, int64_t epoch, const CommandsThrough& unless) override;
  void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) override;
  void OnEpochRefused(const std::string& model, const absl::Status& why) override;
  void OnSaveNews(const SaveNews& news) override;
  void OnRestoreNews(const RestoreNews& news) override;

 private:
  static bool IsNeverGone() { return false; }
  // Makes one that is full.
  absl::StatusOr<std::shared_ptr<Model>> MakeFull(ModelSpec spec, const ValuesToCome& values, Fill fill);
  using MakeModel = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Model>>(ModelSpec spec)>;
  absl::StatusOr<Created> MakeOrJoin(ModelSpec spec, MakeModel make, IsGone is_gone, const ValuesToCome& values);
  // Makes one, in memory that is kept where there is somebody to keep it.
  absl::StatusOr<std::shared_ptr<Model>> Make(ModelSpec spec, const ValuesToCome& values);
  Model::Options OptionsFor(ModelSpec spec) const;
  // Tries until the deadline.
  absl::Status TakeOverWithRoom(const std::string& name, KeptStore::Descriptors pieces, SteadyTime deadline,
                                std::vector<CutOffChange>& cut_off);
  absl::Status TakeOverModel(const std::string& name, KeptStore::Descriptors pieces,
                             std::vector<CutOffChange>& cut_off);
  bool IsOfSeveral(const RecoveryPlan& plan) const;
  absl::StatusOr<std::shared_ptr<Model>> Resume(const std::string& name, LeftModel left) const;
  // What is left of a model that did not come to be.
  void Discard(Model& model) const;
  // Whether the model is whole, and was to be saved by a drain, and is not.
  static bool IsLeftUnsaved(const Model& model);
  void NoteUnsaved(const std::vector<std::shared_ptr<Model>>& models);
  void LogStillKept(const std::string& name, const absl::Status& why) const;
  // Whether a change of the model that was not made loses it. Another one may have its name by now.
  bool MayLose(const std::shared_ptr<Model>& model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The name is lost instead, if it is still this model's: what is kept of the model is the name's from then on.
  void SetLost(const std::shared_ptr<Model>& model, const absl::Status& why);
  // Trainers of other daemons need not wait for it. Before anybody here knows of it: node 0 hears of whatever becomes
  // of a model that is lost behind that it is.
  void ReportLost(const std::string& name, const absl::Status& why) const;
  absl::Status DeleteFound(const std::shared_ptr<Model>& model, const std::string& request_id);
  // Whether it was there; then the deletion is remembered.
  bool EraseDeleted(const std::shared_ptr<Model>& model, const std::string& request_id);
  // What is left of a lost model. Whether the call is answered: there was one, or a call of that id has deleted it.
  absl::StatusOr<bool> DeleteLost(const std::string& name, const std::string& request_id);
  // Whether a call of that id has deleted it. INVALID_ARGUMENT when it has deleted another one.
  absl::StatusOr<bool> IsDeleted(const std::string& name, const std::string& request_id) const;
  // Of a model that is lost: only a restore makes it anew.
  absl::Status CheckNotLost(const Model& made) const;
  void RememberDeletion(const std::string& name, const std::string& request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when there is none that is full.
  absl::StatusOr<std::shared_ptr<Model>> Join(const ModelSpec& spec, const ValuesToCome& values) const;
  absl::Status ShowFilling(const std::shared_ptr<Model>& model);
  void DropFilling(const std::shared_ptr<Model>& model);
  int64_t AvailableBytes() const;
  void RefuseSave(const SaveNews& news, const absl::Status& why);
  std::string Names() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Options options_;
  // One for all models, which may outlive the store: whoever creates and deletes them in a loop writes no more lines.
  const std::shared_ptr<ThrottledLog> log_ = std::make_shared<ThrottledLog>(*options_.clock);
  LostModels lost_;
  DeletionMarks deletion_marks_;
  absl::Mutex hearing_;  // held while the listener is called
  RestoreListener* restore_listener_ ABSL_GUARDED_BY(hearing_) = nullptr;
  CreationTurns turns_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<Model>, std::less<>> models_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> deletions_ ABSL_GUARDED_BY(mu_);  // names of models, by request id
  std::shared_ptr<Model> filling_ ABSL_GUARDED_BY(mu_);                // among models_; null when all are full
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> left_unsaved_ = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_MODEL_STORE_H_
