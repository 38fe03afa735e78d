#include "client/examples/transformer.h"

#include <algorithm>
#include <utility>

#include "client/examples/rms_norm.h"

namespace paramshard::examples {
namespace {

void Add(const std::vector<float>& values, std::vector<float>& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

std::vector<float> Normalized(const std::vector<float>& input, const std::vector<float>& gain) {
  std::vector<float> output(input.size());
  RmsNormForward(input, gain, absl::MakeSpan(output));
  return output;
}

std::vector<float> Forwarded(const LinearShape& shape, const std::vector<float>& input,
                             const std::vector<float>& weight) {
  std::vector<float> output(shape.samples * shape.outputs);
  LinearForward(shape, input.data(), weight.data(), output.data());
  return output;
}

// Sets the weight's gradient and returns the input's.
std::vector<float> Backwarded(const LinearShape& shape, const std::vector<float>& output_gradient,
                              const std::vector<float>& input, const std::vector<float>& weight,
                              std::vector<float>& weight_gradient) {
  LinearWeightGradient(shape, output_gradient.data(), input.data(), weight_gradient.data());
  std::vector<float> input_gradient(shape.samples * shape.inputs);
  LinearInputGradient(shape, output_gradient.data(), weight.data(), input_gradient.data());
  return input_gradient;
}

// max(x, 0)^2 (So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 2021).
std::vector<float> SquaredRelu(const std::vector<float>& input) {
  std::vector<float> output(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const float positive = std::max(input[i], 0.0f);
    output[i] = positive * positive;
  }
  return output;
}

void SquaredReluBackward(const std::vector<float>& input, std::vector<float>& gradient) {
  for (size_t i = 0; i < input.size(); ++i) gradient[i] *= 2.0f * std::max(input[i], 0.0f);
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerShape& shape)
    : width_(shape.width), hidden_(shape.hidden()), attention_(shape.context, shape.width, shape.heads) {}

LinearShape TransformerBlock::Linear(const std::vector<float>& stream, int64_t inputs, int64_t outputs) const {
  return {static_cast<int64_t>(stream.size()) / width_, inputs, outputs};
}

void TransformerBlock::Forward(const Values& weights, std::vector<float>& stream) {
  ForwardAttention(weights, stream);
  ForwardPerceptron(weights, stream);
}

void TransformerBlock::ForwardAttention(const Values& weights, std::vector<float>& stream) {
  attention_input_ = stream;
  attention_normalized_ = Normalized(stream, weights[kAttentionGain]);
  query_key_value_ = Forwarded(Linear(stream, width_, 3 * width_), attention_normalized_, weights[kQueryKeyValue]);
  attention_.Forward(query_key_value_, attended_);
  Add(Forwarded(Linear(stream, width_, width_), attended_, weights[kProjection]), stream);
}

void TransformerBlock::ForwardPerceptron(const Values& weights, std::vector<float>& stream) {
  perceptron_input_ = stream;
  perceptron_normalized_ = Normalized(stream, weights[kPerceptronGain]);
  up_ = Forwarded(Linear(stream, width_, hidden_), perceptron_normalized_, weights[kUp]);
  activated_ = SquaredRelu(up_);
  Add(Forwarded(Linear(stream, hidden_, width_), activated_, weights[kDown]), stream);
}

void TransformerBlock::Backward(const Values& weights, std::vector<float>& gradient, Values& gradients) const {
  BackwardPerceptron(weights, gradient, gradients);
  BackwardAttention(weights, gradient, gradients);
}

void TransformerBlock::BackwardPerceptron(const Values& weights, std::vector<float>& gradient,
                                          Values& gradients) const {
  std::vector<float> inner =
      Backwarded(Linear(gradient, hidden_, width_), gradient, activated_, weights[kDown], gradients[kDown]);
  SquaredReluBackward(up_, inner);
  inner = Backwarded(Linear(gradient, width_, hidden_), inner, perceptron_normalized_, weights[kUp], gradients[kUp]);
  RmsNormBackward(perceptron_input_, weights[kPerceptronGain], inner, absl::MakeSpan(gradient),
                  absl::MakeSpan(gradients[kPerceptronGain]));
}

void TransformerBlock::BackwardAttention(const Values& weights, std::vector<float>& gradient, Values& gradients) const {
  const std::vector<float> attended =
      Backwarded(Linear(gradient, width_, width_), gradient, attended_, weights[kProjection], gradients[kProjection]);
  std::vector<float> query_key_value;
  attention_.Backward(query_key_value_, attended, query_key_value);
  const std::vector<float> normalized =
      Backwarded(Linear(gradient, width_, 3 * width_), query_key_value, attention_normalized_, weights[kQueryKeyValue],
                 gradients[kQueryKeyValue]);
  RmsNormBackward(attention_input_, weights[kAttentionGain], normalized, absl::MakeSpan(gradient),
                  absl::MakeSpan(gradients[kAttentionGain]));
}

Transformer::Transformer(const TransformerShape& shape)
    : shape_(shape), blocks_(shape.blocks, TransformerBlock(shape)) {}

void Transformer::SetInput(absl::Span<const int> tokens) { tokens_.assign(tokens.begin(), tokens.end()); }

void Transformer::Forward(int unit, const Values& weights) {
  if (unit == 0) {
    Embed(weights);
  } else if (unit <= shape_.blocks) {
    blocks_[unit - 1].Forward(weights, stream_);
  } else {
    HeadForward(weights);
  }
}

Score Transformer::Loss(absl::Span<const int> labels, float scale) {
  return CrossEntropy(logits_, labels, scale, gradient_);
}

void Transformer::Backward(int unit, const Values& weights, Values& gradients) {
  if (unit == 0) {
    EmbeddingBackward(gradients);
  } else if (unit <= shape_.blocks) {
    blocks_[unit - 1].Backward(weights, gradient_, gradients);
  } else {
    HeadBackward(weights, gradients);
  }
}

void Transformer::Embed(const Values& weights) {
  stream_.resize(rows() * shape_.width);
  for (int64_t i = 0; i < rows(); ++i) {
    const float* const token = weights[kTokens].data() + tokens_[i] * shape_.width;
    const float* const position = weights[kPositions].data() + i % shape_.context * shape_.width;
    for (int64_t j = 0; j < shape_.width; ++j) stream_[i * shape_.width + j] = token[j] + position[j];
  }
}

void Transformer::EmbeddingBackward(Values& gradients) const {
  for (std::vector<float>& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 0.0f);
  for (int64_t i = 0; i < rows(); ++i) {
    float* const token = gradients[kTokens].data() + tokens_[i] * shape_.width;
    float* const position = gradients[kPositions].data() + i % shape_.context * shape_.width;
    for (int64_t j = 0; j < shape_.width; ++j) {
      token[j] += gradient_[i * shape_.width + j];
      position[j] += gradient_[i * shape_.width + j];
    }
  }
}

void Transformer::HeadForward(const Values& weights) {
  normalized_ = Normalized(stream_, weights[kHeadGain]);
  logits_ = Forwarded(HeadLinear(), normalized_, weights[kHeadWeight]);
}

void Transformer::HeadBackward(const Values& weights, Values& gradients) {
  const std::vector<float> normalized =
      Backwarded(HeadLinear(), gradient_, normalized_, weights[kHeadWeight], gradients[kHeadWeight]);
  gradient_.assign(stream_.size(), 0.0f);
  RmsNormBackward(stream_, weights[kHeadGain], normalized, absl::MakeSpan(gradient_),
                  absl::MakeSpan(gradients[kHeadGain]));
}

}  // namespace paramshard::examples
