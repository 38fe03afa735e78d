// A multi-layer perceptron: linear layers with ReLU between them, softmax and cross-entropy at the end. It holds
// activations, never weights: each call takes its weights as they are gathered.
#ifndef PARAMSHARD_CLIENT_DEMO_PERCEPTRON_H_
#define PARAMSHARD_CLIENT_DEMO_PERCEPTRON_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/demo/cross_entropy.h"
#include "client/demo/linear.h"

namespace paramshard::demo {

// Weights are [outputs, inputs], row-major; a batch is samples x size, row-major. One pass is
//
//   network.SetInput(pixels);
//   for (int l = 0; l < network.layers(); ++l) network.Forward(l, weight[l], bias[l]);
//   score = network.Loss(labels, 1.0f / batch);
//   for (int l = network.layers() - 1; l >= 0; --l) {
//     network.ParameterGradients(l, weight_gradient[l], bias_gradient[l]);
//     if (l > 0) network.Backward(l, weight[l]);
//   }
class Perceptron {
 public:
  // The sizes of the input, the hidden layers and the output: at least two.
  explicit Perceptron(std::vector<int64_t> sizes);

  int layers() const { return static_cast<int>(sizes_.size()) - 1; }
  int64_t inputs(int layer) const { return sizes_[layer]; }
  int64_t outputs(int layer) const { return sizes_[layer + 1]; }

  // Begins a pass over input.size() / inputs(0) samples, possibly none.
  void SetInput(absl::Span<const float> input);

  // Computes the layer's outputs from the outputs of the layer before.
  void Forward(int layer, const float* weight, const float* bias);

  // Scores the samples. Sets the gradient of `scale` times the loss by the outputs.
  Score Loss(absl::Span<const int> labels, float scale);

  // Writes the gradients of a layer's parameters, from the gradient of its outputs.
  void ParameterGradients(int layer, float* weight_gradient, float* bias_gradient) const;

  // Turns the gradient of the layer's outputs into the gradient of the outputs of the layer before.
  void Backward(int layer, const float* weight);

 private:
  LinearShape Shape(int layer) const { return {samples_, inputs(layer), outputs(layer)}; }

  std::vector<int64_t> sizes_;
  int64_t samples_ = 0;
  std::vector<std::vector<float>> activations_;  // of the input, then after each layer
  std::vector<float> gradient_;                  // of the outputs of the layer that Backward has come to
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_PERCEPTRON_H_
