// Handwritten digits and a perceptron that learns them.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TASK_H_
#define PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TASK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/examples/data_set.h"
#include "client/examples/perceptron.h"
#include "client/examples/task.h"
#include "client/examples/trainer.h"

namespace paramshard::examples {

// Units "layer0" to "layer2", each with "layerN.weight" and "layerN.bias". A sample is an image.
class DigitsTask : public Task {
 public:
  static absl::StatusOr<std::unique_ptr<Task>> Create();
  // Returns the default options of the training.
  static TrainerOptions Defaults();
  explicit DigitsTask(TrainTest digits);

  std::vector<UnitSpec> Units() const override;
  int64_t training_samples() const override { return digits_.train.size(); }
  int64_t predictions_per_sample() const override { return 1; }
  void SetTrainingSamples(absl::Span<const int64_t> samples) override;
  void SetHeldOutSamples() override;
  void Forward(int unit, const Values& weights) override;
  Score Loss(float scale) override { return network_.Loss(labels_, scale); }
  void Backward(int unit, const Values& weights, Values& gradients) override;

 private:
  const TrainTest digits_;
  Perceptron network_;
  std::vector<int> labels_;  // of the pass
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_DIGITS_TASK_H_
