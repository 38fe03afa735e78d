#include "client/demo/digits_task.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr int64_t kHidden = 512;

enum Parameter { kWeight, kBias };

UnitSpec MakeUnit(int layer, int64_t inputs, int64_t outputs) {
  UnitSpec unit{.name = absl::StrCat("layer", layer), .parameters = std::vector<ParameterSpec>(2)};
  ParameterSpec& weight = unit.parameters[kWeight];
  weight.name = unit.name + ".weight";
  weight.shape = {outputs, inputs};
  weight.initial_value = {Initializer::kNormal, 0.0f, std::sqrt(2.0f / static_cast<float>(inputs))};
  ParameterSpec& bias = unit.parameters[kBias];
  bias.name = unit.name + ".bias";
  bias.shape = {outputs};
  return unit;
}

}  // namespace

absl::StatusOr<DigitsTask> DigitsTask::Create() {
  ASSIGN_OR_RETURN(const DataSet all, LoadDigits());
  return DigitsTask(Split(all));
}

DigitsTask::DigitsTask(TrainTest digits)
    : digits_(std::move(digits)), network_({kPixels, kHidden, kHidden, kClasses}) {}

std::vector<UnitSpec> DigitsTask::Units() const {
  std::vector<UnitSpec> units;
  for (int layer = 0; layer < network_.layers(); ++layer) {
    units.push_back(MakeUnit(layer, network_.inputs(layer), network_.outputs(layer)));
  }
  return units;
}

void DigitsTask::SetTrainingSamples(absl::Span<const int64_t> samples) {
  std::vector<float> pixels;
  labels_.clear();
  for (int64_t index : samples) {
    const absl::Span<const float> sample = digits_.train.sample(index);
    pixels.insert(pixels.end(), sample.begin(), sample.end());
    labels_.push_back(digits_.train.labels[index]);
  }
  network_.SetInput(pixels);
}

void DigitsTask::SetHeldOutSamples() {
  labels_ = digits_.test.labels;
  network_.SetInput(digits_.test.pixels);
}

void DigitsTask::Forward(int unit, const Values& weights) {
  network_.Forward(unit, weights[kWeight].data(), weights[kBias].data());
}

void DigitsTask::Backward(int unit, const Values& weights, Values& gradients) {
  network_.ParameterGradients(unit, gradients[kWeight].data(), gradients[kBias].data());
  if (unit > 0) network_.Backward(unit, weights[kWeight].data());
}

}  // namespace paramshard::demo
