// A small causal transformer: token and position embeddings; blocks of RMS norm and attention, RMS norm and a
// perceptron with a squared ReLU, each added to the residual stream; a last norm and a linear head. It holds
// activations, never weights: each call takes its weights as they are gathered.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_TRANSFORMER_H_
#define PARAMSHARD_CLIENT_EXAMPLES_TRANSFORMER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/examples/attention.h"
#include "client/examples/cross_entropy.h"
#include "client/examples/linear.h"
#include "client/examples/values.h"

namespace paramshard::examples {

struct TransformerShape {
  int64_t vocabulary = 128;
  int64_t context = 64;  // positions of a sequence
  int64_t width = 64;    // of the stream
  int64_t heads = 2;     // divides the width
  int blocks = 2;

  int64_t hidden() const { return 4 * width; }
};

// The parameters of each kind of unit, with their shapes.
enum EmbeddingParameter { kTokens, kPositions };  // [vocabulary, width], [context, width]
// [width], [3 * width, width], [width, width], [width], [hidden, width], [width, hidden]
enum BlockParameter { kAttentionGain, kQueryKeyValue, kProjection, kPerceptronGain, kUp, kDown };
enum HeadParameter { kHeadGain, kHeadWeight };  // [width], [vocabulary, width]

// One block. The stream is [rows, width], and is changed in place.
class TransformerBlock {
 public:
  explicit TransformerBlock(const TransformerShape& shape);

  void Forward(const Values& weights, std::vector<float>& stream);
  // Turns the gradient of the stream after the block into the gradient before it, and sets the parameters' gradients.
  void Backward(const Values& weights, std::vector<float>& gradient, Values& gradients) const;

 private:
  void ForwardAttention(const Values& weights, std::vector<float>& stream);
  void ForwardPerceptron(const Values& weights, std::vector<float>& stream);
  void BackwardPerceptron(const Values& weights, std::vector<float>& gradient, Values& gradients) const;
  void BackwardAttention(const Values& weights, std::vector<float>& gradient, Values& gradients) const;
  LinearShape Linear(const std::vector<float>& stream, int64_t inputs, int64_t outputs) const;

  const int64_t width_, hidden_;
  CausalAttention attention_;
  // Activations, in the order of their computation.
  std::vector<float> attention_input_, attention_normalized_, query_key_value_, attended_;
  std::vector<float> perceptron_input_, perceptron_normalized_, up_, activated_;
};

// All of it. A unit is the embedding (0), a block, or the head (the last). One pass is
//
//   network.SetInput(tokens);
//   for (int u = 0; u < network.units(); ++u) network.Forward(u, weights[u]);
//   score = network.Loss(labels, 1.0f / batch);
//   for (int u = network.units() - 1; u >= 0; --u) network.Backward(u, weights[u], gradients[u]);
class Transformer {
 public:
  explicit Transformer(const TransformerShape& shape);

  int units() const { return shape_.blocks + 2; }
  const TransformerShape& shape() const { return shape_; }

  // Begins a pass over whole sequences of tokens, [sequences, context], possibly none.
  void SetInput(absl::Span<const int> tokens);

  void Forward(int unit, const Values& weights);

  // Scores the predictions for each next token. Sets the gradient of `scale` times the loss by the logits.
  Score Loss(absl::Span<const int> labels, float scale);

  // Sets the gradients of a unit's parameters, which have their sizes already. The embedding needs no weights.
  void Backward(int unit, const Values& weights, Values& gradients);

 private:
  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  LinearShape HeadLinear() const { return {rows(), shape_.width, shape_.vocabulary}; }

  void Embed(const Values& weights);
  void EmbeddingBackward(Values& gradients) const;
  void HeadForward(const Values& weights);
  void HeadBackward(const Values& weights, Values& gradients);

  const TransformerShape shape_;
  std::vector<TransformerBlock> blocks_;
  std::vector<int> tokens_;
  std::vector<float> stream_;      // [rows, width]
  std::vector<float> normalized_;  // before the head's weight
  std::vector<float> logits_;      // [rows, vocabulary]
  std::vector<float> gradient_;    // of the logits, then of the stream where Backward has come to
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_TRANSFORMER_H_
