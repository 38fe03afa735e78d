#include "client/demo/perceptron.h"

#include <cmath>

#include "client/demo/matrix_product.h"
#include "gmock/gmock.h"
#include "kernels/random/initial_values.h"

namespace paramshard::demo {
namespace {

using ::testing::ElementsAre;

std::vector<float> RandomValues(int64_t count, int64_t stream, float deviation = 0.5f) {
  std::vector<float> values(count);
  FillInitialValues({Initializer::kNormal, 0.0f, deviation}, /*seed=*/1, stream, 0, count, values.data());
  return values;
}

class MultiplyTest : public testing::TestWithParam<int64_t> {};

// Rows and columns around the tiles' sizes; both ways to read a.
TEST_P(MultiplyTest, EqualsTheDefinition) {
  const int64_t rows = GetParam(), columns = GetParam() + 14, inner = 9;
  const std::vector<float> a = RandomValues(rows * inner, 0), b = RandomValues(inner * columns, 1);
  for (const StridedMatrix view : {StridedMatrix{a.data(), inner, 1}, StridedMatrix{a.data(), 1, rows}}) {
    std::vector<float> product(rows * columns, NAN);
    Multiply(rows, columns, inner, view, b.data(), product.data());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        float sum = 0.0f;
        for (int64_t k = 0; k < inner; ++k)
          sum += view.data[i * view.row_stride + k * view.column_stride] * b[k * columns + j];
        ASSERT_EQ(product[i * columns + j], sum) << i << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MultiplyTest, testing::Values(0, 1, 2, 3, 4, 5, 8, 18, 33));

TEST(TransposeTest, SwapsRowsAndColumns) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  std::vector<float> transposed(6);
  Transpose(2, 3, matrix.data(), transposed.data());
  EXPECT_THAT(transposed, ElementsAre(1, 4, 2, 5, 3, 6));
}

// A small network with all of its weights.
class PerceptronTest : public testing::Test {
 protected:
  static constexpr float kScale = 0.25f;
  static constexpr int kSamples = 5;

  PerceptronTest() : network_({6, 7, 5, 4}), input_(RandomValues(kSamples * 6, 50, 1.0f)), labels_{0, 3, 1, 2, 3} {
    for (int layer = 0; layer < network_.layers(); ++layer) {
      weights_.push_back(RandomValues(network_.inputs(layer) * network_.outputs(layer), layer));
      biases_.push_back(RandomValues(network_.outputs(layer), 10 + layer));
    }
  }

  double Loss() {
    network_.SetInput(input_);
    for (int layer = 0; layer < network_.layers(); ++layer)
      network_.Forward(layer, weights_[layer].data(), biases_[layer].data());
    return network_.Loss(labels_, kScale).loss;
  }

  // The change of the scaled loss with one number, by central differences.
  double Slope(float& number) {
    constexpr float kStep = 1.0f / 256;
    const float saved = number;
    number = saved + kStep;
    const double above = Loss();
    number = saved - kStep;
    const double below = Loss();
    number = saved;
    return kScale * (above - below) / (2 * kStep);
  }

  Perceptron network_;
  std::vector<float> input_;
  std::vector<int> labels_;
  std::vector<std::vector<float>> weights_, biases_;
};

TEST_F(PerceptronTest, GradientsAreTheSlopesOfTheLoss) {
  Loss();
  std::vector<std::vector<float>> weight_gradients = weights_, bias_gradients = biases_;
  for (int layer = network_.layers() - 1; layer >= 0; --layer) {
    network_.ParameterGradients(layer, weight_gradients[layer].data(), bias_gradients[layer].data());
    if (layer > 0) network_.Backward(layer, weights_[layer].data());
  }
  for (int layer = 0; layer < network_.layers(); ++layer) {
    for (size_t i = 0; i < weights_[layer].size(); ++i) {
      EXPECT_NEAR(weight_gradients[layer][i], Slope(weights_[layer][i]), 2e-3) << "layer " << layer << " weight " << i;
    }
    for (size_t i = 0; i < biases_[layer].size(); ++i) {
      EXPECT_NEAR(bias_gradients[layer][i], Slope(biases_[layer][i]), 2e-3) << "layer " << layer << " bias " << i;
    }
  }
}

TEST_F(PerceptronTest, ASampleWithoutPreferenceCostsTheLogarithmOfTheClasses) {
  for (std::vector<float>& weight : weights_) std::fill(weight.begin(), weight.end(), 0.0f);
  for (std::vector<float>& bias : biases_) std::fill(bias.begin(), bias.end(), 0.0f);
  EXPECT_NEAR(Loss(), kSamples * std::log(4.0), 1e-6);
}

TEST_F(PerceptronTest, LargeLogitsDoNotOverflow) {
  biases_[2] = {1e30f, 0.0f, 0.0f, 0.0f};
  labels_ = {0, 0, 0, 0, 0};
  EXPECT_EQ(Loss(), 0.0);
  EXPECT_EQ(network_.Loss(labels_, kScale).correct, kSamples);
}

TEST_F(PerceptronTest, NoSampleIsNoLossAndNoGradient) {
  input_.clear();
  labels_.clear();
  EXPECT_EQ(Loss(), 0.0);
  std::vector<float> weight_gradient(weights_[2].size(), NAN), bias_gradient(biases_[2].size(), NAN);
  network_.ParameterGradients(2, weight_gradient.data(), bias_gradient.data());
  EXPECT_THAT(weight_gradient, testing::Each(0.0f));
  EXPECT_THAT(bias_gradient, testing::Each(0.0f));
}

TEST_F(PerceptronTest, TheSamePassGivesTheSameBits) {
  const double first = Loss();
  EXPECT_EQ(Loss(), first);
}

}  // namespace
}  // namespace paramshard::demo
