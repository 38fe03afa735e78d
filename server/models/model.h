// A model on this daemon.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/layout.h"
#include "server/base/clock.h"
#include "server/data_plane/topology.h"
#include "server/device/kept_memory.h"
#include "server/models/durability.h"
#include "server/models/model_budget.h"
#include "server/models/model_saver.h"
#include "server/models/model_state.h"
#include "server/models/replica_healing.h"
#include "server/models/state_changes.h"
#include "server/models/state_recovery.h"
#include "server/models/test_hooks.h"
#include "server/models/trainer_gate.h"
#include "server/observe/log_throttle.h"
#include "server/state/committed_state.h"
#include "server/state/shard.h"
#include "server/training/epoch_host.h"
#include "server/training/placed_model.h"
#include "server/training/world.h"

namespace paramshard::server {

// The caller's description of the values of a model that it creates or joins (v1::CreateModelRequest).
struct AnnouncedValues {
  absl::uint128 run = 0;           // RunDigest
  bool values_follow = false;      // by an import
  bool all_values_follow = false;  // the import replaces every initial value
  bool takes_any_seed = false;     // a model that is there may have another seed than the spec
};

// Owns the parts of a model and passes on what one has to hear of another. Each part says what can be done with it:
//
//   model->trainers().Attach(trainer);                 // TrainerGate: who trains, epochs, drains
//   model->state().snapshot().numbers.commit_number;   // ModelState: which state it is, and its condition
//   model->committed().shards[rank]->extents();        // CommittedState: shards, commits, amaxes
//   model->changes().Import(imported, write);          // StateChanges: imports and restores
//   model->durability().Drop();                        // Durability: what outlives the server
//
// Thread-safe.
class Model : private EpochHost {
 public:
  struct Options {
    ModelSpec spec;
    World world;  // its cluster outlives the model
    absl::Duration step_timeout;
    // How long writers of planes wait for readers' snapshots, and at most a quarter of a step's timeout.
    absl::Duration reader_hold = absl::Milliseconds(250);
    const Clock* clock = &Clock::Steady();                // outlives the model
    std::shared_ptr<PublicationCount> publications = {};  // counts its versions; may be null
    // Bytes that the daemon may still take. Nothing is allocated when the model needs more.
    int64_t available_bytes = 0;
    std::string save_dir = {};            // folder of all models' checkpoints; empty: none
    const SaverSource* savers = nullptr;  // outlives the model; null: it is never saved
    MovePolicy moves = {};                // of the steps
    // Memory of the state; null: it ends with the process.
    std::unique_ptr<KeptMemory> memory = nullptr;
    // A model inherited from another server, which IsRecoverable, or whose change is to be made again: until then it is
    // unfinished. `memory` is null with it.
    std::unique_ptr<InheritedModel> inherited = nullptr;
    AnnouncedValues values = {};  // of one that is created
    int64_t deletion = 0;         // likewise: DeletionMarks::SerialOf
    std::shared_ptr<ThrottledLog> log = std::make_shared<ThrottledLog>();
    ModelTestHooks hooks = {};
  };

  // Allocates the shards of this daemon's ranks, or adopts them. INVALID_ARGUMENT as Topology::Create says;
  // RESOURCE_EXHAUSTED with needed and free bytes by class; what broke a device; what a saver is refused for. Of memory
  // that was adopted also FAILED_PRECONDITION, where this server has another world or version, and DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Options options);

  // Ends a running epoch and waits until its threads are gone.
  ~Model() override;

  TrainerGate& trainers() { return trainers_; }
  const TrainerGate& trainers() const { return trainers_; }
  ModelState& state() { return state_; }
  const ModelState& state() const { return state_; }
  const CommittedState& committed() const { return committed_; }
  StateChanges& changes() { return changes_; }
  Durability& durability() { return *durability_; }
  const ModelBudget& budget() const { return budget_; }
  // Null where nothing is saved.
  ModelSaver* saver() const { return saver_.get(); }

  // Closes the model to trainers and changes, and ends its saves: TrainerGate::Close. UNAVAILABLE also while it is
  // saved.
  absl::Status Close(const absl::Status& why);

  const ModelSpec& spec() const { return placed_->spec; }
  const Layout& layout() const { return placed_->layout; }
  const World& world() const { return placed_->world; }
  const Topology& topology() const { return placed_->topology; }
  // Fingerprint of the spec without initial values. The lineage of a model that still has them includes them.
  uint64_t fingerprint() const { return placed_->fingerprint; }
  uint64_t layout_fingerprint() const { return placed_->layout_fingerprint; }
  const std::string& save_dir() const { return save_dir_; }

  // The copy that ModelState::Hold has begun.
  CopyGate& copies() { return committed_.copies; }
  Publication& publication() { return *committed_.publication; }
  const Publication& publication() const { return *committed_.publication; }
  // Host memory of saves.
  int64_t image_bytes() const { return saver_ == nullptr ? 0 : saver_->image_bytes(); }
  // When this server has answered the last commit of the model; unset: none yet.
  std::optional<absl::Time> last_commit_time() const;

 private:
  Model(std::unique_ptr<const PlacedModel> placed, ModelBudget budget, std::unique_ptr<Durability> durability,
        std::shared_ptr<Publication> publication, const Options& options);
  // Allocates or adopts the shards. `inherited` is null for a new model.
  absl::Status AllocateShards(const MovePolicy& moves, const InheritedModel* inherited);
  absl::Status MakeSaver(const SaverSource& savers, const InheritedModel* inherited);
  void LogBudget() const;
  void LogProducts() const;

  // EpochHost
  bool may_save() const override { return saver_ != nullptr; }
  void OnEpochReady() override;
  void OnSaveOrder(const SaveOrder& order) override;
  void OnAnswered(const CommitAnswer& answer, bool save) override;
  void OnEpochOver() override;
  absl::Status SendState(int receiver, Engines engines, SteadyTime deadline) override;
  absl::Status ReceiveState(const std::string& history_id, int donor, Engines engines, SteadyTime deadline) override;

  // In the order in which each needs those before it.
  const std::unique_ptr<const PlacedModel> placed_;
  const std::string save_dir_;
  const ModelBudget budget_;  // refers to *placed_
  const std::unique_ptr<Durability> durability_;
  CommittedState committed_;
  ModelState state_;
  TrainerGate trainers_;
  StateChanges changes_;
  ReplicaHealing healing_;
  std::unique_ptr<ModelSaver> saver_;                 // constant after Create; ends first
  std::atomic<int64_t> last_commit_nanoseconds_ = 0;  // of Unix time; 0: none yet
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_H_
