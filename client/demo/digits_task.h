// Handwritten digits and a perceptron that learns them.
#ifndef PARAMSHARD_CLIENT_DEMO_DIGITS_TASK_H_
#define PARAMSHARD_CLIENT_DEMO_DIGITS_TASK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/demo/data_set.h"
#include "client/demo/perceptron.h"

namespace paramshard::demo {

// The parameters of one unit, or their gradients: row-major, one vector for each parameter, in the unit's order.
using Values = std::vector<std::vector<float>>;

// Units "layer0" to "layer2", each with "layerN.weight" and "layerN.bias". Calls take the weights of one unit as they
// are gathered. One pass is
//
//   task.SetTrainingSamples(samples);
//   for (int u = 0; u < units; ++u) task.Forward(u, weights[u]);
//   score = task.Loss(1.0f / samples.size());
//   for (int u = units - 1; u >= 0; --u) task.Backward(u, weights[u], gradients[u]);
class DigitsTask {
 public:
  static absl::StatusOr<DigitsTask> Create();

  // Returns names, shapes and initial values, in the order of the forward pass. The trainer sets the storage.
  std::vector<UnitSpec> Units() const;
  int64_t training_samples() const { return digits_.train.size(); }

  // Begins a pass over some training samples (possibly none), or over all held-out samples.
  void SetTrainingSamples(absl::Span<const int64_t> samples);
  void SetHeldOutSamples();

  void Forward(int unit, const Values& weights);
  // Scores the pass. Sets the gradient of `scale` times the loss by the network's outputs.
  Score Loss(float scale) { return network_.Loss(labels_, scale); }
  // Sets the gradients, which have their sizes already. The first unit is given no weights.
  void Backward(int unit, const Values& weights, Values& gradients);

 private:
  explicit DigitsTask(TrainTest digits);

  TrainTest digits_;
  Perceptron network_;
  std::vector<int> labels_;  // of the pass
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_DIGITS_TASK_H_
