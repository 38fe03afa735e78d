// Trains a perceptron on handwritten digits, data-parallel over the ranks of a daemon's world.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TRAINER_H_
#define PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TRAINER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/examples/batches.h"
#include "client/examples/data_set.h"
#include "client/examples/perceptron.h"
#include "client/examples/training_report.h"

namespace paramshard::examples {

struct DigitsOptions {
  Client::Options client;
  std::string model = "digits";
  Format format = Format::kMXFP8;
  std::optional<int> shard_size;
  int64_t epochs = 20;
  int64_t batch_size = 64;  // of all ranks together
  uint64_t seed = 1;
  float learning_rate = 2e-3f;  // falls linearly to a twentieth
  // Die by SIGKILL in the middle of the step that would make this commit.
  std::optional<int64_t> kill_at_step;
};

// The model: one unit a layer, "layer0" to "layer2", with parameters "layer0.weight" in the chosen
// format and "layer0.bias" in FP32.
ModelSpec MakeDigitsModel(const DigitsOptions& options);

// One rank's trainer. Weights are seen through the client library alone.
class DigitsTrainer {
 public:
  // `report` outlives the trainer.
  static absl::StatusOr<DigitsTrainer> Create(const DigitsOptions& options, TrainingReport* report);

  // Trains from where the daemon says that the model is to the last epoch. When another trainer
  // leaves, attaches again and goes on from the last commit.
  absl::Status Run();

 private:
  DigitsTrainer(const DigitsOptions& options, Client client, TrainTest digits, TrainingReport* report);

  // What the steps of an epoch have cost in this session.
  struct EpochCost {
    int64_t steps = 0;
    int64_t gathered_bytes = 0;
    absl::Duration time;
  };

  absl::Status Train(Model& model);
  absl::Status TrainEpoch(Model& model);
  absl::Status Step(Model& model);
  absl::Status Forward(Model& model);
  absl::Status BackwardAndPush(Model& model, int64_t commit_number);
  absl::Status Commit(Model& model, CommitOptions options);
  // Waits for the commit that is under way, if any.
  absl::Status AwaitCommit();
  // The accuracy on the held-out samples.
  absl::StatusOr<double> Evaluate(Model& model);
  absl::Status ReportEpoch(Model& model);

  // Gathers a layer and decodes it; the unit is released on return.
  absl::Status LoadLayer(Model& model, int layer, Phase phase);
  float LearningRate() const;
  int64_t Bf16BytesPerStep() const;

  DigitsOptions options_;
  Client client_;
  TrainTest digits_;
  TrainingReport* report_;
  Perceptron network_;

  TrainingPosition position_;
  EpochCost cost_;
  int64_t next_commit_ = 1;
  std::optional<PendingCommit> pending_;
  bool committed_ = false;  // since it attached
  std::vector<float> weight_, bias_, weight_gradient_, bias_gradient_;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TRAINER_H_
