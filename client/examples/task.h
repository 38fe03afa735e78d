// A trainer's task: a network, the data that it learns from, and the units of its model.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_TASK_H_
#define PARAMSHARD_CLIENT_EXAMPLES_TASK_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/client.h"
#include "client/examples/cross_entropy.h"
#include "client/examples/values.h"

namespace paramshard::examples {

// Each call takes the weights of one unit, in the order of its parameters, as they are gathered. One pass is
//
//   task.SetTrainingSamples(samples);
//   for (int u = 0; u < units; ++u) task.Forward(u, weights[u]);
//   score = task.Loss(1.0f / predictions);
//   for (int u = units - 1; u >= 0; --u) task.Backward(u, weights[u], gradients[u]);
class Task {
 public:
  virtual ~Task() = default;

  // Returns names, shapes and initial values, in the order of the forward pass. The trainer sets the storage.
  virtual std::vector<UnitSpec> Units() const = 0;

  virtual int64_t training_samples() const = 0;
  // The number that one sample adds to Score::count.
  virtual int64_t predictions_per_sample() const = 0;

  // Begins a pass over some training samples (possibly none), or over all held-out samples.
  virtual void SetTrainingSamples(absl::Span<const int64_t> samples) = 0;
  virtual void SetHeldOutSamples() = 0;

  virtual void Forward(int unit, const Values& weights) = 0;
  // Scores the pass. Sets the gradient of `scale` times the loss by the network's outputs.
  virtual Score Loss(float scale) = 0;
  // Sets the gradients, which have their sizes already. The first unit is given no weights.
  virtual void Backward(int unit, const Values& weights, Values& gradients) = 0;
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_TASK_H_
