// Causal self-attention of several heads: every position sees itself and earlier positions. It keeps the attention
// weights of the last pass for the backward pass.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_ATTENTION_H_
#define PARAMSHARD_CLIENT_EXAMPLES_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace paramshard::examples {

// A row of the input holds one position's queries, keys and values, `width` numbers each, cut into heads; a row of the
// output holds the position's attended values, `width` numbers. Every `context` rows are one sequence.
class CausalAttention {
 public:
  // `heads` divides `width`.
  CausalAttention(int64_t context, int64_t width, int64_t heads)
      : context_(context), width_(width), heads_(heads), head_width_(width / heads) {}

  // [rows, 3 * width] to [rows, width].
  void Forward(const std::vector<float>& input, std::vector<float>& output);

  // Computes the gradient of the input from the gradient of the output, after Forward() with the same input.
  void Backward(const std::vector<float>& input, const std::vector<float>& output_gradient,
                std::vector<float>& input_gradient) const;

 private:
  struct Head;  // of one sequence

  Head At(int64_t sequence, int64_t head) const;
  void ForwardHead(const Head& at, const float* input, float* output);
  void BackwardHead(const Head& at, const float* input, const float* output_gradient, float* input_gradient) const;

  const int64_t context_, width_, heads_, head_width_;
  std::vector<float> weights_;  // [sequences, heads, context, context]
};

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_ATTENTION_H_
