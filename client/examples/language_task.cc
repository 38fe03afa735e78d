#include "client/examples/language_task.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

constexpr float kEmbeddingDeviation = 0.1f;

ParameterSpec Matrix(const std::string& name, int64_t rows, int64_t columns, float deviation) {
  ParameterSpec matrix;
  matrix.name = name;
  matrix.shape = {rows, columns};
  matrix.initial_value = {Initializer::kNormal, 0.0f, deviation};
  return matrix;
}

// Initial values keep the magnitude of activations.
ParameterSpec Linear(const std::string& name, int64_t outputs, int64_t inputs, float scale = 1.0f) {
  return Matrix(name, outputs, inputs, scale / std::sqrt(static_cast<float>(inputs)));
}

ParameterSpec Gain(const std::string& name, int64_t width) {
  ParameterSpec gain;
  gain.name = name;
  gain.shape = {width};
  gain.initial_value = {Initializer::kOnes};
  return gain;
}

UnitSpec EmbeddingUnit(const TransformerShape& shape) {
  return {.name = "embedding",
          .parameters = {Matrix("embedding.tokens", shape.vocabulary, shape.width, kEmbeddingDeviation),
                         Matrix("embedding.positions", shape.context, shape.width, kEmbeddingDeviation)}};
}

// Projections onto the residual stream start smaller in deeper networks (Radford et al., "Language Models are
// Unsupervised Multitask Learners", 2019).
UnitSpec BlockUnit(const TransformerShape& shape, int block) {
  const std::string name = absl::StrCat("block", block);
  const float added = 1.0f / std::sqrt(2.0f * static_cast<float>(shape.blocks));
  return {.name = name,
          .parameters = {Gain(name + ".attention.norm", shape.width),
                         Linear(name + ".attention.query_key_value", 3 * shape.width, shape.width),
                         Linear(name + ".attention.projection", shape.width, shape.width, added),
                         Gain(name + ".perceptron.norm", shape.width),
                         Linear(name + ".perceptron.up", shape.hidden(), shape.width),
                         Linear(name + ".perceptron.down", shape.width, shape.hidden(), added)}};
}

UnitSpec HeadUnit(const TransformerShape& shape) {
  return {.name = "head",
          .parameters = {Gain("head.norm", shape.width), Linear("head.weight", shape.vocabulary, shape.width, 0.1f)}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> LanguageTask::Create() {
  const TransformerShape shape{.vocabulary = kVocabulary};
  ASSIGN_OR_RETURN(TextSplit text, LoadText(shape.context));
  return std::make_unique<LanguageTask>(shape, std::move(text));
}

TrainerOptions LanguageTask::Defaults() {
  return {.model = "lm", .epochs = 1, .batch_size = 8, .learning_rate = 3e-3f};
}

LanguageTask::LanguageTask(const TransformerShape& shape, TextSplit text) : text_(std::move(text)), network_(shape) {}

std::vector<UnitSpec> LanguageTask::Units() const {
  std::vector<UnitSpec> units = {EmbeddingUnit(network_.shape())};
  for (int block = 0; block < network_.shape().blocks; ++block) units.push_back(BlockUnit(network_.shape(), block));
  units.push_back(HeadUnit(network_.shape()));
  return units;
}

void LanguageTask::SetTrainingSamples(absl::Span<const int64_t> samples) { SetSamples(text_.train, samples); }

void LanguageTask::SetHeldOutSamples() {
  std::vector<int64_t> all(text_.held_out.size());
  std::iota(all.begin(), all.end(), 0);
  SetSamples(text_.held_out, all);
}

void LanguageTask::SetSamples(const Text& text, absl::Span<const int64_t> samples) {
  std::vector<int> tokens;
  labels_.clear();
  for (int64_t index : samples) {
    const absl::Span<const int> sample = text.sample(index);
    const absl::Span<const int> labels = text.labels(index);
    tokens.insert(tokens.end(), sample.begin(), sample.end());
    labels_.insert(labels_.end(), labels.begin(), labels.end());
  }
  network_.SetInput(tokens);
}

}  // namespace paramshard::examples
