#include "client/demo/perceptron.h"

#include <algorithm>
#include <utility>

#include "client/demo/linear.h"

namespace paramshard::demo {
namespace {

// Adds the bias to each row and, for hidden layers, sets negative values to 0.
void AddBias(absl::Span<const float> bias, bool relu, std::vector<float>& outputs) {
  for (size_t i = 0; i < outputs.size(); i += bias.size()) {
    for (size_t j = 0; j < bias.size(); ++j) {
      const float value = outputs[i + j] + bias[j];
      outputs[i + j] = relu ? std::max(value, 0.0f) : value;
    }
  }
}

}  // namespace

Perceptron::Perceptron(std::vector<int64_t> sizes) : sizes_(std::move(sizes)), activations_(sizes_.size()) {}

void Perceptron::SetInput(absl::Span<const float> input) {
  samples_ = static_cast<int64_t>(input.size()) / sizes_.front();
  activations_.front().assign(input.begin(), input.end());
}

void Perceptron::Forward(int layer, const float* weight, const float* bias) {
  std::vector<float>& result = activations_[layer + 1];
  result.resize(samples_ * outputs(layer));
  LinearForward(Shape(layer), activations_[layer].data(), weight, result.data());
  AddBias(absl::MakeConstSpan(bias, outputs(layer)), layer + 1 < layers(), result);
}

Score Perceptron::Loss(absl::Span<const int> labels, float scale) {
  return CrossEntropy(activations_.back(), labels, scale, gradient_);
}

void Perceptron::ParameterGradients(int layer, float* weight_gradient, float* bias_gradient) const {
  LinearWeightGradient(Shape(layer), gradient_.data(), activations_[layer].data(), weight_gradient);
  std::fill_n(bias_gradient, outputs(layer), 0.0f);
  for (int64_t i = 0; i < samples_; ++i) {
    for (int64_t j = 0; j < outputs(layer); ++j) bias_gradient[j] += gradient_[i * outputs(layer) + j];
  }
}

void Perceptron::Backward(int layer, const float* weight) {
  std::vector<float> result(samples_ * inputs(layer));
  LinearInputGradient(Shape(layer), gradient_.data(), weight, result.data());
  // The outputs of the layer before are 0 exactly where its ReLU was shut.
  for (size_t i = 0; i < result.size(); ++i) {
    if (activations_[layer][i] == 0.0f) result[i] = 0.0f;
  }
  gradient_ = std::move(result);
}

}  // namespace paramshard::demo
