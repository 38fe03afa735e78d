#include "client/examples/perceptron.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/examples/matrix_product.h"

namespace paramshard::examples {
namespace {

// Adds the bias to each row and, for hidden layers, sets what is negative to 0.
void AddBias(absl::Span<const float> bias, bool relu, std::vector<float>& outputs) {
  for (size_t i = 0; i < outputs.size(); i += bias.size()) {
    for (size_t j = 0; j < bias.size(); ++j) {
      const float value = outputs[i + j] + bias[j];
      outputs[i + j] = relu ? std::max(value, 0.0f) : value;
    }
  }
}

// -log softmax(logits)[label]; writes scale * (softmax - one-hot), its gradient.
double CrossEntropy(absl::Span<const float> logits, int label, float scale, absl::Span<float> gradient) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  for (size_t j = 0; j < logits.size(); ++j) {
    const double softmax = std::exp(static_cast<double>(logits[j]) - largest) / sum;
    gradient[j] = scale * static_cast<float>(softmax - (static_cast<int>(j) == label ? 1.0 : 0.0));
  }
  return std::log(sum) - (static_cast<double>(logits[label]) - largest);
}

}  // namespace

Perceptron::Perceptron(std::vector<int64_t> sizes) : sizes_(std::move(sizes)), activations_(sizes_.size()) {}

void Perceptron::SetInput(absl::Span<const float> input) {
  samples_ = static_cast<int64_t>(input.size()) / sizes_.front();
  activations_.front().assign(input.begin(), input.end());
}

void Perceptron::Forward(int layer, const float* weight, const float* bias) {
  // Transposed, the product's inner loop runs over outputs, which lie side by side.
  transposed_.resize(inputs(layer) * outputs(layer));
  Transpose(outputs(layer), inputs(layer), weight, transposed_.data());
  std::vector<float>& result = activations_[layer + 1];
  result.resize(samples_ * outputs(layer));
  Multiply(samples_, outputs(layer), inputs(layer), {activations_[layer].data(), inputs(layer), 1}, transposed_.data(),
           result.data());
  AddBias(absl::MakeConstSpan(bias, outputs(layer)), layer + 1 < layers(), result);
}

double Perceptron::Loss(absl::Span<const int> labels, float scale) {
  const int64_t classes = sizes_.back();
  gradient_.resize(samples_ * classes);
  double loss = 0;
  for (int64_t i = 0; i < samples_; ++i) {
    loss += CrossEntropy(absl::MakeConstSpan(logits()).subspan(i * classes, classes), labels[i], scale,
                         absl::MakeSpan(gradient_).subspan(i * classes, classes));
  }
  return loss;
}

void Perceptron::ParameterGradients(int layer, float* weight_gradient, float* bias_gradient) const {
  Multiply(outputs(layer), inputs(layer), samples_, {gradient_.data(), 1, outputs(layer)}, activations_[layer].data(),
           weight_gradient);
  std::fill_n(bias_gradient, outputs(layer), 0.0f);
  for (int64_t i = 0; i < samples_; ++i) {
    for (int64_t j = 0; j < outputs(layer); ++j) bias_gradient[j] += gradient_[i * outputs(layer) + j];
  }
}

void Perceptron::Backward(int layer, const float* weight) {
  std::vector<float> result(samples_ * inputs(layer));
  Multiply(samples_, inputs(layer), outputs(layer), {gradient_.data(), outputs(layer), 1}, weight, result.data());
  // The outputs of the layer before are 0 exactly where its ReLU was shut.
  for (size_t i = 0; i < result.size(); ++i) {
    if (activations_[layer][i] == 0.0f) result[i] = 0.0f;
  }
  gradient_ = std::move(result);
}

int64_t Perceptron::CountCorrect(absl::Span<const int> labels) const {
  int64_t correct = 0;
  for (int64_t i = 0; i < samples_; ++i) {
    const auto first = logits().begin() + i * sizes_.back();
    if (std::max_element(first, first + sizes_.back()) - first == labels[i]) ++correct;
  }
  return correct;
}

}  // namespace paramshard::examples
