#include "kernels/optim/muon.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/muon_math.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

OptimizerStep StepOf(bool nesterov) {
  OptimizerStep step = TypicalStep(nesterov ? Optimizer::kMuonNesterov : Optimizer::kMuon);
  step.momentum = 0.95f;
  SetMuonRates(/*factor=*/2.0, step);
  return step;
}

TEST(MuonMathTest, MomentumGoesAPartOfTheWayToTheGradient) {
  OptimizerStep step;
  step.optimizer = Optimizer::kMuonNesterov;
  step.momentum = 0.75f;
  step.gradient_scale = 2.0f;
  EXPECT_FLOAT_EQ(MuonMomentum(step, 2.0f, 2.0f), 2.5f);
  EXPECT_FLOAT_EQ(MuonUpdate(step, 2.0f, 2.5f), 2.875f);
  step.optimizer = Optimizer::kMuon;
  EXPECT_EQ(MuonUpdate(step, 2.0f, 2.5f), 2.5f);
  step.momentum = 0.25f;
  EXPECT_FLOAT_EQ(MuonMomentum(step, 2.0f, 2.0f), 3.5f);
  step.momentum = 0.0f;
  EXPECT_EQ(MuonMomentum(step, 2.0f, 2.0f), 4.0f);
}

TEST(MuonMathTest, TheDecayTakesTheRateBeforeItIsAdjusted) {
  OptimizerStep step;
  step.learning_rate = 0.1f;
  step.weight_decay = 0.5f;
  SetMuonRates(3.0, step);
  float master = 2.0f;
  MuonMaster::Update(step, 0.5f, master, nullptr);
  EXPECT_FLOAT_EQ(master, 1.75f);
}

TEST(MuonMathTest, RatesFollowTheShape) {
  EXPECT_DOUBLE_EQ(RateFactor(MuonRate::kOriginal, 4, 16), 1.0);
  EXPECT_DOUBLE_EQ(RateFactor(MuonRate::kOriginal, 16, 4), 2.0);
  EXPECT_DOUBLE_EQ(RateFactor(MuonRate::kMatchRmsAdamW, 4, 16), 0.8);
  EXPECT_DOUBLE_EQ(RateFactor(MuonRate::kMatchRmsAdamW, 16, 4), 0.8);
  EXPECT_DOUBLE_EQ(RateFactor(MuonRate::kSpectralUnclamped, 4, 16), 0.5);
}

TEST(MuonTest, MomentumAndUpdateAreTheFormulaInFloat64) {
  constexpr uint64_t kSeed = 31;
  RandomFloats random(kSeed);
  for (const bool nesterov : {false, true}) {
    const OptimizerStep step = StepOf(nesterov);
    const int64_t rows = 7;
    const int64_t cols = 1300;
    const std::vector<float> gradient = random.Normal(rows * cols, 1.0f);
    Moments momentum(MomentType::kFP32, random.Normal(rows * cols, 1.0f));
    const std::vector<float> old = momentum.Get();
    StepMuonMomentum(step, gradient.data(), momentum.View(), momentum.View(), rows, cols);
    std::vector<uint16_t> update(rows * cols);
    MakeMuonUpdate(step, gradient.data(), momentum.View(), rows, cols, update.data());
    const std::vector<float> fresh = momentum.Get();
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double g = double{gradient[i]} * double{step.gradient_scale};
      const double factor = double{step.momentum};
      const double m = factor * double{old[i]} + (1 - factor) * g;
      ASSERT_NEAR(fresh[i], m, 1e-6);
      const double u = nesterov ? (1 - factor) * g + factor * m : m;
      ASSERT_NEAR(DecodeBFloat16(update[i]), u, std::fabs(u) * 0x1p-8 + 1e-6);
    }
  }
}

TEST(MuonTest, TheUpdateIsTheSameFromEitherMomentumInEveryType) {
  constexpr uint64_t kSeed = 32;
  RandomFloats random(kSeed);
  for (const MomentType type : kMomentTypes) {
    for (const int64_t cols : {1, 127, 300, 2000}) {
      SCOPED_TRACE(absl::StrCat("seed ", kSeed, " ", MomentTypeName(type), " ", cols));
      const OptimizerStep step = StepOf(/*nesterov=*/true);
      const int64_t rows = 5;
      const std::vector<float> gradient = random.Normal(rows * cols, 1.0f);
      Moments old(MomentKind::kFirst, type, rows, cols, random.Normal(rows * cols, 1.0f));
      Moments fresh = old;
      StepMuonMomentum(step, gradient.data(), old.View(), fresh.View(), rows, cols);
      std::vector<uint16_t> from_old(rows * cols), from_fresh(rows * cols);
      MakeMuonUpdateFromOld(step, gradient.data(), old.View(), rows, cols, from_old.data());
      MakeMuonUpdate(step, gradient.data(), fresh.View(), rows, cols, from_fresh.data());
      EXPECT_EQ(from_old, from_fresh);
      // In place, and from a gradient of BF16.
      std::vector<uint16_t> half(gradient.size());
      std::vector<float> widened(gradient.size());
      for (size_t i = 0; i < half.size(); ++i) widened[i] = DecodeBFloat16(half[i] = EncodeBFloat16(gradient[i]));
      Moments one = old;
      Moments other = old;
      StepMuonMomentum(step, {half.data(), GradientType::kBF16}, one.View(), one.View(), rows, cols);
      StepMuonMomentum(step, widened.data(), old.View(), other.View(), rows, cols);
      EXPECT_EQ(one.Get(), other.Get());
    }
  }
}

TEST(MuonTest, TheMastersStepLeavesTheMomentum) {
  const OptimizerStep step = StepOf(/*nesterov=*/true);
  RandomFloats random(33);
  OwnedState state = RandomState(random, 20, 30, MomentType::kFP32, MomentType::kFP32, kMuonMomentCount);
  const OwnedState before = state;
  std::vector<uint16_t> update(600);
  for (uint16_t& element : update) element = EncodeBFloat16(random.Normal(1, 1.0f).front());
  FusedStep(step, {update.data(), GradientType::kBF16}, state.View(), 20, 30, {}, {}, {});
  EXPECT_EQ(state.exp_avg.Get(), before.exp_avg.Get());
  for (size_t i = 0; i < update.size(); ++i) {
    ASSERT_EQ(state.master[i], before.master[i] * step.kept - step.matrix_rate * DecodeBFloat16(update[i]));
  }
}

}  // namespace
}  // namespace paramshard
