#include "client/examples/attention.h"

#include <algorithm>
#include <cmath>

#include "client/examples/matrix_product.h"

namespace paramshard::examples {
namespace {

// Copies rows x columns between a contiguous matrix and one whose rows are farther apart.
std::vector<float> Gathered(int64_t rows, int64_t columns, const float* from, int64_t stride) {
  std::vector<float> matrix(rows * columns);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, columns, matrix.data() + i * columns);
  return matrix;
}

void Scatter(int64_t rows, int64_t columns, const std::vector<float>& matrix, float* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(matrix.data() + i * columns, columns, to + i * stride);
}

std::vector<float> Transposed(int64_t rows, int64_t columns, const std::vector<float>& matrix) {
  std::vector<float> transposed(matrix.size());
  Transpose(rows, columns, matrix.data(), transposed.data());
  return transposed;
}

std::vector<float> Product(int64_t rows, int64_t columns, int64_t inner, StridedMatrix a, const std::vector<float>& b) {
  std::vector<float> product(rows * columns);
  Multiply(rows, columns, inner, a, b.data(), product.data());
  return product;
}

// Row i becomes softmax(scale * its first i + 1 elements), then zeros.
void CausalSoftmax(int64_t context, float scale, float* scores) {
  for (int64_t i = 0; i < context; ++i) {
    float* const row = scores + i * context;
    const float largest = *std::max_element(row, row + i + 1);
    float sum = 0.0f;
    for (int64_t j = 0; j <= i; ++j) sum += row[j] = std::exp(scale * (row[j] - largest));
    for (int64_t j = 0; j <= i; ++j) row[j] /= sum;
    std::fill(row + i + 1, row + context, 0.0f);
  }
}

// Turns the gradient of softmax(scale * scores) into the gradient of the scores, which is 0 where weights are 0.
void SoftmaxBackward(int64_t context, float scale, const float* weights, float* gradient) {
  for (int64_t i = 0; i < context; ++i) {
    const float* const row = weights + i * context;
    float* const slope = gradient + i * context;
    float mean = 0.0f;
    for (int64_t j = 0; j <= i; ++j) mean += row[j] * slope[j];
    for (int64_t j = 0; j < context; ++j) slope[j] = scale * row[j] * (slope[j] - mean);
  }
}

}  // namespace

// Offsets into the input, the output and the weights.
struct CausalAttention::Head {
  int64_t queries, keys, values, output, weights;
};

CausalAttention::Head CausalAttention::At(int64_t sequence, int64_t head) const {
  const int64_t row = sequence * context_;
  const int64_t queries = row * 3 * width_ + head * head_width_;
  return {.queries = queries,
          .keys = queries + width_,
          .values = queries + 2 * width_,
          .output = row * width_ + head * head_width_,
          .weights = (sequence * heads_ + head) * context_ * context_};
}

void CausalAttention::Forward(const std::vector<float>& input, std::vector<float>& output) {
  const int64_t sequences = static_cast<int64_t>(input.size()) / (context_ * 3 * width_);
  output.resize(sequences * context_ * width_);
  weights_.resize(sequences * heads_ * context_ * context_);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t h = 0; h < heads_; ++h) ForwardHead(At(s, h), input.data(), output.data());
  }
}

void CausalAttention::ForwardHead(const Head& at, const float* input, float* output) {
  const int64_t stride = 3 * width_;
  const std::vector<float> keys =
      Transposed(context_, head_width_, Gathered(context_, head_width_, input + at.keys, stride));
  const std::vector<float> values = Gathered(context_, head_width_, input + at.values, stride);
  float* const weights = weights_.data() + at.weights;
  Multiply(context_, context_, head_width_, {input + at.queries, stride, 1}, keys.data(), weights);
  CausalSoftmax(context_, 1.0f / std::sqrt(static_cast<float>(head_width_)), weights);
  const std::vector<float> read = Product(context_, head_width_, context_, {weights, context_, 1}, values);
  Scatter(context_, head_width_, read, output + at.output, width_);
}

void CausalAttention::Backward(const std::vector<float>& input, const std::vector<float>& output_gradient,
                               std::vector<float>& input_gradient) const {
  const int64_t sequences = static_cast<int64_t>(input.size()) / (context_ * 3 * width_);
  input_gradient.resize(input.size());
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t h = 0; h < heads_; ++h)
      BackwardHead(At(s, h), input.data(), output_gradient.data(), input_gradient.data());
  }
}

void CausalAttention::BackwardHead(const Head& at, const float* input, const float* output_gradient,
                                   float* input_gradient) const {
  const int64_t stride = 3 * width_;
  const float* const weights = weights_.data() + at.weights;
  const std::vector<float> queries = Gathered(context_, head_width_, input + at.queries, stride);
  const std::vector<float> keys = Gathered(context_, head_width_, input + at.keys, stride);
  const std::vector<float> values =
      Transposed(context_, head_width_, Gathered(context_, head_width_, input + at.values, stride));
  const std::vector<float> read = Gathered(context_, head_width_, output_gradient + at.output, width_);

  std::vector<float> scores = Product(context_, context_, head_width_, {read.data(), head_width_, 1}, values);
  SoftmaxBackward(context_, 1.0f / std::sqrt(static_cast<float>(head_width_)), weights, scores.data());
  const StridedMatrix transposed_weights{weights, 1, context_};
  const StridedMatrix transposed_scores{scores.data(), 1, context_};
  const auto product = [this](StridedMatrix a, const std::vector<float>& b) {
    return Product(context_, head_width_, context_, a, b);
  };
  Scatter(context_, head_width_, product({scores.data(), context_, 1}, keys), input_gradient + at.queries, stride);
  Scatter(context_, head_width_, product(transposed_scores, queries), input_gradient + at.keys, stride);
  Scatter(context_, head_width_, product(transposed_weights, read), input_gradient + at.values, stride);
}

}  // namespace paramshard::examples
