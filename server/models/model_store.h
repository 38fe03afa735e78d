// The models of a daemon, by name.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_STORE_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_STORE_H_

#include <sys/types.h>

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
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/kept_store.h"
#include "server/models/creation_turns.h"
#include "server/models/deletion_marks.h"
#include "server/models/deletion_requests.h"
#include "server/models/left_readers.h"
#include "server/models/lost_models.h"
#include "server/models/model.h"
#include "server/models/model_takeover.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Hears what other daemons say of restores. It returns at once, and is never called while a call into the cluster is on
// the stack.
class RestoreListener {
 public:
  virtual ~RestoreListener() = default;
  virtual void OnRestoreMessage(const RestoreMessage& message) = 0;
};

// Thread-safe. Passes on what the cluster says. A model lives until it is deleted and the last call on it has returned.
class ModelStore : public EpochListener {
 public:
  struct Options {
    World world;  // its cluster outlives the store
    absl::Duration step_timeout = absl::Seconds(60);
    absl::Duration reader_hold = absl::Milliseconds(250);  // see Model::Options
    const Clock* clock = &Clock::Steady();                 // outlives the store
    // Largest number of bytes that models may take together; 0: what the devices have available.
    int64_t memory_limit_bytes = 0;
    // Folder of the checkpoints; empty: there are none. It is not read here.
    std::string save_dir = {};
    const SaverSource* savers = nullptr;  // outlives the store and its models; null: nothing is saved
    MovePolicy moves = {};                // of the models' steps
    KeptStore* kept = nullptr;            // memory that outlives the server; outlives the store; null: none
    // Time for which TakeOver retries without free memory: trainers of the server before have its planes and slots
    // mapped until they hear of its end. Less than a daemon that is told to stop while it starts may take.
    absl::Duration room_timeout = absl::Seconds(20);
    bool end_stuck_readers = false;  // see LeftReaders
    // Why this daemon has no models: every call on one returns it. OK: it may have some.
    absl::Status refusal = absl::OkStatus();
    ModelTestHooks hooks = {};
  };

  explicit ModelStore(Options options);

  // `listener` outlives the store or is reset with null, which waits for a call in progress. Without one, orders are
  // refused.
  void SetRestoreListener(RestoreListener* listener);
  ~ModelStore() override;

  // Takes over what another server has left in `kept`, before any other call: models go on from their last commit, or
  // from the decided one. Every later call on a lost model says why it is lost, until it is created with a restore or
  // deleted; its memory stays kept until then, so that the next server says so too. Returns changes that were cut off,
  // to be made again: their models are here, ModelState::unfinished(). FAILED_PRECONDITION naming a model that this
  // server cannot go on with, because of its devices or its version: it stays for a server that can. RESOURCE_EXHAUSTED
  // naming a model whose memory was not free within Options::room_timeout: it stays, too.
  absl::StatusOr<std::vector<InterruptedChange>> TakeOver();
  // Ends a change that was made again, or has failed for good: then the model is lost. The next server tries to make a
  // failed change again, as it does if the daemon drains.
  void FinishChange(const std::shared_ptr<Model>& model, const absl::Status& status);

  struct Created {
    std::shared_ptr<Model> model;
    bool created = false;
  };
  // Creates a model, or finds the model of that name if its spec is equal. Initial values and seed may differ, unless
  // the model still has initial values and some of them are to stay. One model is created at a time; a caller that
  // disconnected does not wait for its turn any longer: ABORTED. ALREADY_EXISTS names the first difference.
  using IsGone = CreationTurns::IsGone;
  absl::StatusOr<Created> CreateOrJoin(ModelSpec spec, IsGone is_gone = CreationTurns::IsNeverGone,
                                       const AnnouncedValues& values = {});
  // Does the same, but a created model gets its state from `fill`, which calls `show` as soon as trainers cannot attach
  // to it any more: from then on others see it. Callers that would join it, or create another model, wait until it is
  // full. If `fill` fails there is no model, and its error is returned. `show` returns UNAVAILABLE once draining.
  using Show = absl::FunctionRef<absl::Status()>;
  using Fill = absl::FunctionRef<absl::Status(const std::shared_ptr<Model>& model, Show show)>;
  absl::StatusOr<Created> CreateOrJoin(ModelSpec spec, Fill fill, IsGone is_gone = CreationTurns::IsNeverGone,
                                       const AnnouncedValues& values = {});
  // Does the same for a model, lost or not, that gets its state from another daemon's replica; `why`: this daemon has
  // no state (ModelState::AwaitReplica).
  absl::StatusOr<Created> CreateToBeHealed(ModelSpec spec, absl::string_view why,
                                           IsGone is_gone = CreationTurns::IsNeverGone,
                                           const AnnouncedValues& values = {});
  // Returns true if other callers want the model that is being created, and wait for it.
  bool IsCreationAwaited() const { return turns_.IsAwaited(); }

  // Also finds a model that is shown while it fills. NOT_FOUND names a few of the present models, and how many more
  // there are.
  absl::StatusOr<std::shared_ptr<Model>> Find(absl::string_view name) const;
  std::vector<std::shared_ptr<Model>> List() const;
  // Returns the models that are lost: every call on one answers with LostModels::Check.
  const LostModels& lost() const { return lost_; }
  // Returns the readers of deleted models and of earlier servers.
  LeftReaders& left_readers() { return left_readers_; }
  const LeftReaders& left_readers() const { return left_readers_; }

  // Deletes a model. Waits for an epoch that is ending; other models can be created and deleted meanwhile. A repeated
  // call with the same request id answers like the first. FAILED_PRECONDITION while a trainer is attached;
  // INVALID_ARGUMENT; UNAVAILABLE while the state is changed or saved, or a lost model is created anew.
  absl::Status Delete(const std::string& name, const std::string& request_id);

  // Which saves are made before a drain is through.
  enum class DrainSaves : uint8_t {
    kUnsaved,   // those under way, and of unsaved states if so configured (ModelSaver::Drain)
    kUnderWay,  // no other save begins: the models go on in the next server
  };
  // Refuses new models, lets commits in flight finish until the deadline, and ends all epochs, each as soon as it may.
  // Then it saves, for as long as that may take (SaverSource::drain_timeout).
  void Drain(SteadyTime deadline, const absl::Status& why, DrainSaves saves = DrainSaves::kUnsaved);

  bool IsDraining() const;

  // Drops the models: the next server has none of them. After Drain; a model that it could not save stays, as it has no
  // copy.
  void DropKept() const;
  // Returns true if the drain failed to save a model: the log has named it.
  bool left_unsaved() const { return left_unsaved_; }

  const World& world() const { return options_.world; }
  // Counts versions of all models, and their ends.
  const PublicationCount& publications() const { return *publications_; }
  const std::string& save_dir() const { return options_.save_dir; }

  // EpochListener
  void Hear(const ToNode& message) override;

 private:
  void OnSaveMessage(const SaveMessage& message);
  void OnRestoreMessage(const RestoreMessage& message);
  // Makes a model that is full.
  absl::StatusOr<std::shared_ptr<Model>> MakeFull(ModelSpec spec, const AnnouncedValues& values, Fill fill);
  using MakeModel = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Model>>(ModelSpec spec)>;
  absl::StatusOr<Created> MakeOrJoin(ModelSpec spec, MakeModel make, IsGone is_gone, const AnnouncedValues& values);
  // Makes a model, in kept memory where there is a keeper.
  absl::StatusOr<std::shared_ptr<Model>> Make(ModelSpec spec, const AnnouncedValues& values);
  Model::Options OptionsFor(ModelSpec spec) const;
  // Discards what is left of a model that did not come to be.
  void Discard(Model& model) const;
  void LogStillKept(const std::string& name, const absl::Status& why) const;
  // Returns true if a failed change of the model loses it. Another model may have its name by now.
  bool MayLose(const std::shared_ptr<Model>& model) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Makes the name a lost one, if it is still this model's: what is kept of the model is the name's from then on.
  void SetLost(const std::shared_ptr<Model>& model, const absl::Status& why);
  absl::Status DeleteFound(const std::shared_ptr<Model>& model, const std::string& request_id);
  // Returns true if the model was there; then the deletion is remembered.
  bool EraseDeleted(const std::shared_ptr<Model>& model, const std::string& request_id);
  // Deletes what is left of a lost model. Returns true if the call is answered: the model was lost, or a call with that
  // id has deleted it.
  absl::StatusOr<bool> DeleteLost(const std::string& name, const std::string& request_id);
  // Returns null if there is no such model that is full.
  absl::StatusOr<std::shared_ptr<Model>> Join(const ModelSpec& spec, const AnnouncedValues& values) const;
  absl::Status ShowFilling(const std::shared_ptr<Model>& model);
  void DropFilling(const std::shared_ptr<Model>& model);
  int64_t AvailableBytes() const;
  // Returns true if the process is attached to a model.
  bool IsTrainer(pid_t pid) const;

  const Options options_;
  // One for all models, which may outlive the store: creations and deletions in a loop write no more lines.
  const std::shared_ptr<ThrottledLog> log_ = std::make_shared<ThrottledLog>(*options_.clock);
  const std::shared_ptr<PublicationCount> publications_ = std::make_shared<PublicationCount>();
  LostModels lost_;
  DeletionMarks deletion_marks_;
  absl::Mutex hearing_;  // held while the listener is called
  RestoreListener* restore_listener_ ABSL_GUARDED_BY(hearing_) = nullptr;
  CreationTurns turns_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<Model>, std::less<>> models_ ABSL_GUARDED_BY(mu_);
  DeletionRequests deletions_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Model> filling_ ABSL_GUARDED_BY(mu_);  // among models_; null when all are full
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> left_unsaved_ = false;
  LeftReaders left_readers_;  // ends first: its thread looks for trainers
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_STORE_H_
