#include "client/examples/transformer.h"

#include <cmath>

#include "client/examples/attention.h"
#include "client/examples/language_task.h"
#include "gmock/gmock.h"
#include "kernels/random/initial_values.h"

namespace paramshard::examples {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Gt;

constexpr float kScale = 0.25f;
constexpr TransformerShape kShape{.vocabulary = 7, .context = 5, .width = 6, .heads = 2, .blocks = 2};

Values RandomWeights(const UnitSpec& unit, int unit_index) {
  Values weights;
  for (const ParameterSpec& parameter : unit.parameters) {
    const int64_t rows = parameter.shape.size() > 1 ? parameter.shape[0] : 1;
    std::vector<float>& values = weights.emplace_back(rows * parameter.shape.back());
    const float mean = rows == 1 ? 1.0f : 0.0f;  // of gains, of others
    FillInitialValues({Initializer::kNormal, mean, 0.5f}, /*seed=*/1, 10 * unit_index + weights.size(), 0,
                      static_cast<int64_t>(values.size()), values.data());
  }
  return weights;
}

// A tiny transformer with all of its weights, on two sequences.
class TransformerTest : public testing::Test {
 protected:
  TransformerTest() : network_(kShape) {
    units_ = LanguageTask(kShape, {Text({}, kShape.context), Text({}, kShape.context)}).Units();
    for (size_t unit = 0; unit < units_.size(); ++unit)
      weights_.push_back(RandomWeights(units_[unit], static_cast<int>(unit)));
  }

  Score Loss() {
    network_.SetInput(tokens_);
    for (int unit = 0; unit < network_.units(); ++unit) network_.Forward(unit, weights_[unit]);
    return network_.Loss(labels_, kScale);
  }

  // After Loss().
  std::vector<Values> Gradients() {
    std::vector<Values> gradients = weights_;
    for (int unit = network_.units() - 1; unit >= 0; --unit) {
      network_.Backward(unit, unit > 0 ? weights_[unit] : Values(), gradients[unit]);
    }
    return gradients;
  }

  // The change of the scaled loss with one number, by central differences.
  double Slope(float& number) {
    constexpr float kStep = 1.0f / 512;
    const float saved = number;
    number = saved + kStep;
    const double above = Loss().loss;
    number = saved - kStep;
    const double below = Loss().loss;
    number = saved;
    return kScale * (above - below) / (2 * kStep);
  }

  Transformer network_;
  std::vector<UnitSpec> units_;
  std::vector<Values> weights_;
  std::vector<int> tokens_ = {0, 3, 1, 6, 2, 5, 5, 0, 4, 1};
  std::vector<int> labels_ = {3, 1, 6, 2, 5, 5, 0, 4, 1, 2};
};

TEST_F(TransformerTest, GradientsAreTheSlopesOfTheLoss) {
  Loss();
  const std::vector<Values> gradients = Gradients();
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t parameter = 0; parameter < weights_[unit].size(); ++parameter) {
      for (size_t i = 0; i < weights_[unit][parameter].size(); ++i) {
        const double slope = Slope(weights_[unit][parameter][i]);
        EXPECT_NEAR(gradients[unit][parameter][i], slope, 2e-3 + 5e-3 * std::abs(slope))
            << units_[unit].parameters[parameter].name << " " << i;
      }
    }
  }
}

TEST_F(TransformerTest, EveryParameterHasAGradient) {
  Loss();
  for (const Values& unit : Gradients()) {
    for (const std::vector<float>& gradient : unit) EXPECT_THAT(gradient, Contains(Gt(1e-3f)));
  }
}

TEST_F(TransformerTest, WithoutPreferenceACharacterCostsTheLogarithmOfTheVocabulary) {
  std::fill(weights_.back()[kHeadWeight].begin(), weights_.back()[kHeadWeight].end(), 0.0f);
  const Score score = Loss();
  EXPECT_EQ(score.count, 10);
  EXPECT_NEAR(score.loss, 10 * std::log(7.0), 1e-5);
}

TEST_F(TransformerTest, NoSequenceIsNoLossAndNoGradient) {
  tokens_.clear();
  labels_.clear();
  EXPECT_EQ(Loss().loss, 0.0);
  for (const Values& unit : Gradients()) {
    for (const std::vector<float>& gradient : unit) EXPECT_THAT(gradient, Each(0.0f));
  }
}

TEST_F(TransformerTest, TheSamePassGivesTheSameBits) {
  const double first = Loss().loss;
  const std::vector<Values> gradients = Gradients();
  EXPECT_EQ(Loss().loss, first);
  EXPECT_EQ(Gradients(), gradients);
}

TEST(CausalAttentionTest, APositionSeesItselfAndThoseBeforeItInItsSequence) {
  constexpr int64_t kContext = 4, kWidth = 6, kSequences = 2, kChanged = 2;
  CausalAttention attention(kContext, kWidth, /*heads=*/3);
  std::vector<float> input(kSequences * kContext * 3 * kWidth), before, after;
  FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, 0, 0, static_cast<int64_t>(input.size()), input.data());
  attention.Forward(input, before);
  for (int64_t i = 0; i < 3 * kWidth; ++i) input[kChanged * 3 * kWidth + i] += 1.0f;
  attention.Forward(input, after);
  for (int64_t row = 0; row < kSequences * kContext; ++row) {
    const bool sees = row >= kChanged && row < kContext;
    for (int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) EXPECT_EQ(before[i] != after[i], sees) << row;
  }
}

TEST(CausalAttentionTest, TheFirstPositionReadsItsOwnValues) {
  CausalAttention attention(/*context=*/2, /*width=*/2, /*heads=*/1);
  std::vector<float> output;
  attention.Forward({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, output);
  EXPECT_EQ(output[0], 5.0f);
  EXPECT_EQ(output[1], 6.0f);
}

}  // namespace
}  // namespace paramshard::examples
