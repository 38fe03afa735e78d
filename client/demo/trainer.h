// Trains the digits' network, data-parallel over the ranks of a daemon's world.
#ifndef PARAMSHARD_CLIENT_DEMO_TRAINER_H_
#define PARAMSHARD_CLIENT_DEMO_TRAINER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/batches.h"
#include "client/demo/digits_task.h"
#include "client/demo/retries.h"
#include "client/demo/storage.h"
#include "client/demo/training_report.h"

namespace paramshard::demo {

struct TrainerOptions {
  Client::Options client = {};
  std::string model = "digits";
  Storage storage = {};
  std::optional<int> shard_size = {};
  // Reduction of the ranks' gradients. With kMean epochs may run without some replicas, if the daemons permit it.
  GradientReduction gradient_reduction = GradientReduction::kSum;
  std::optional<int> world_size = {};  // reject a daemon whose world has another number of ranks
  int64_t epochs = 20;
  std::optional<int64_t> steps = {};  // overrides `epochs`
  int64_t batch_size = 64;            // of all ranks together
  // Steps between two reports; unset: an epoch.
  std::optional<int64_t> report_interval = {};
  uint64_t seed = 1;
  float learning_rate = 2e-3f;  // falls linearly to a twentieth
  // First step for a model without a stored position, such as an imported one; unset: its number of commits.
  std::optional<int64_t> start_step = {};
  // Die by SIGKILL in the middle of the step that would make this commit.
  std::optional<int64_t> kill_at_step = {};
  // Wait in the middle of the step that would make this commit, once, until the epoch has ended.
  std::optional<int64_t> hold_at_step = {};
};

// One rank's trainer. It accesses weights only through the client library.
class Trainer {
 public:
  // `report` outlives the trainer.
  static absl::StatusOr<Trainer> Create(const TrainerOptions& options, TrainingReport* report);

  // Trains from the model's position to the last epoch. When another trainer leaves, and after other transient errors,
  // attaches again and continues from the last commit: as often as Retries allows between two commits. It does the same
  // if the daemon dies and comes back with the model, in its last or its saved state. FAILED_PRECONDITION if the model
  // is lost: the daemon was restarted without a keeper and without a checkpoint.
  absl::Status Run();

 private:
  Trainer(const TrainerOptions& options, Client client, DigitsTask task, TrainingReport* report);

  // The cost of the steps since the last report, while this trainer is attached.
  struct Cost {
    int64_t steps = 0;
    int64_t gathered_bytes = 0;
    absl::Duration time = absl::ZeroDuration();
  };

  absl::Status Attempt();
  absl::Status Train(Model& model);
  absl::Status CheckModel(const Model& model) const;
  // Reports that the model has lost commits which this trainer has seen, if it has.
  void ReportRollback(const Model& model) const;
  absl::StatusOr<TrainingPosition> PositionIn(const Model& model) const;
  // Trains up to the next report.
  absl::Status TrainInterval(Model& model);
  absl::Status Step(Model& model);
  // Returns the factor of this rank's gradients that makes the daemon's result the mean over the global batch.
  float LossScale(const Model& model, const Batch& batch) const;
  absl::Status Forward(Model& model);
  absl::Status BackwardAndPush(Model& model, int64_t commit_number);
  absl::Status Push(Model& model, const UnitSpec& unit);
  absl::Status Hold(const Model& model);
  absl::Status Commit(Model& model, CommitOptions options);
  // Waits for the commit in progress, if any.
  absl::Status AwaitCommit();
  absl::Status Report(Model& model);

  // Gathers a unit and decodes it into weights_; the unit is released on return.
  absl::Status Load(Model& model, const UnitSpec& unit, Phase phase);
  int64_t total_steps() const { return options_.steps.value_or(options_.epochs * batches_.batches_per_epoch()); }
  int64_t report_interval() const { return options_.report_interval.value_or(batches_.batches_per_epoch()); }
  int64_t NextReport() const;
  float LearningRate() const;
  int64_t Bf16BytesPerStep() const;

  TrainerOptions options_;
  Client client_;
  DigitsTask task_;
  TrainingReport* report_;
  ModelSpec spec_;
  Batches batches_;

  TrainingPosition position_;
  Cost cost_;
  Retries retries_;
  int64_t next_commit_ = 1;
  int64_t last_commit_ = 0;  // last answered commit, here or before
  std::optional<PendingCommit> pending_;
  bool attached_ = false;   // at the last attempt
  bool committed_ = false;  // since it attached
  Values weights_;          // of the unit loaded last
  Values gradients_;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_TRAINER_H_
