// A novel, and a transformer that learns to continue it, character by character.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_LANGUAGE_TASK_H_
#define PARAMSHARD_CLIENT_EXAMPLES_LANGUAGE_TASK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/examples/task.h"
#include "client/examples/text.h"
#include "client/examples/trainer.h"
#include "client/examples/transformer.h"

namespace paramshard::examples {

// Units "embedding", "block0" and so on, and "head", with the parameters that transformer.h names. A sample is a window
// of text, each of whose characters is followed by a prediction.
class LanguageTask : public Task {
 public:
  static absl::StatusOr<std::unique_ptr<Task>> Create();
  // Returns the default options of the training.
  static TrainerOptions Defaults();
  // The text's windows have the length of the shape's context.
  LanguageTask(const TransformerShape& shape, TextSplit text);

  std::vector<UnitSpec> Units() const override;
  int64_t training_samples() const override { return text_.train.size(); }
  int64_t predictions_per_sample() const override { return network_.shape().context; }
  void SetTrainingSamples(absl::Span<const int64_t> samples) override;
  void SetHeldOutSamples() override;
  void Forward(int unit, const Values& weights) override { network_.Forward(unit, weights); }
  Score Loss(float scale) override { return network_.Loss(labels_, scale); }
  void Backward(int unit, const Values& weights, Values& gradients) override {
    network_.Backward(unit, weights, gradients);
  }

 private:
  void SetSamples(const Text& text, absl::Span<const int64_t> samples);

  const TextSplit text_;
  Transformer network_;
  std::vector<int> labels_;  // of the pass
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_LANGUAGE_TASK_H_
