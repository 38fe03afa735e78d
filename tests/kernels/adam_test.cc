#include "kernels/optim/adam.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/adam_state.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

// One rounding to float32 per operation, whatever the compiler would like.
float Round(float value) {
  volatile float rounded = value;
  return rounded;
}

// The formula of docs/numerics.md, written out.
void SlowAdam(const AdamStep& s, const std::vector<float>& gradient, OwnedState& state) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    float p = state.master[i];
    float g = Round(gradient[i] * s.gradient_scale);
    if (s.mode == AdamMode::kL2) g = Round(g + Round(s.weight_decay * p));
    const float m = Round(Round(s.beta1 * state.exp_avg.Get(i)) + Round(Round(1.0f - s.beta1) * g));
    const float v = Round(Round(s.beta2 * state.exp_avg_sq.Get(i)) + Round(Round(Round(1.0f - s.beta2) * g) * g));
    const float mh = Round(m / s.bias_correction1);
    const float vh = Round(v / s.bias_correction2);
    const float d = Round(Round(std::sqrt(vh)) + s.epsilon);
    float change = Round(mh / d);
    if (s.mode == AdamMode::kAdamW) change = Round(change + Round(s.weight_decay * p));
    p = Round(p - Round(s.learning_rate * change));
    state.master[i] = std::isnan(p) ? std::bit_cast<float>(0x7fc00000u) : p;
    state.exp_avg.Set(i, m);
    state.exp_avg_sq.Set(i, v);
  }
}

TEST(FusedAdamTest, StepIsTheWrittenFormulaThenTheEncoding) {
  constexpr uint64_t kSeed = 11;
  RandomFloats random(kSeed);
  for (const Encoding& encoding : AllEncodings()) {
    for (MomentType exp_avg : kMomentTypes) {
      for (MomentType exp_avg_sq : kMomentTypes) {
        for (AdamMode mode : kModes) {
          const int64_t rows = random.Integer(0, 150);
          const int64_t cols = random.Integer(1, 300);
          SCOPED_TRACE(absl::StrCat("seed ", kSeed, " ", FormatName(encoding.format), " ", rows, " x ", cols));
          OwnedState state = RandomState(random, rows * cols, exp_avg, exp_avg_sq);
          const std::vector<float> gradient = random.Mixed(rows * cols);
          OwnedState expected = state;
          SlowAdam(TypicalStep(mode), gradient, expected);
          OwnedPlanes planes(encoding, rows, cols);
          FusedAdam(TypicalStep(mode), gradient.data(), state.View(), rows, cols, encoding, planes.row_wise.View(),
                    planes.column_wise.View());
          EXPECT_TRUE(state.SameAs(expected));
          EXPECT_TRUE(planes == Encode(encoding, expected.master, rows, cols));
        }
      }
    }
  }
}

TEST(FusedAdamTest, ExtremeValuesFollowTheFormula) {
  const std::vector<float> extremes = Extremes();
  std::vector<float> master, gradient, exp_avg, exp_avg_sq;
  for (float g : extremes) {
    for (float m : extremes) {
      for (float v : extremes) {
        master.push_back(0.5f);
        gradient.push_back(g);
        exp_avg.push_back(m);
        exp_avg_sq.push_back(v);
      }
    }
  }
  OwnedState state = {master, Moments(MomentType::kFP32, exp_avg), Moments(MomentType::kFP32, exp_avg_sq)};
  OwnedState expected = state;
  SlowAdam(TypicalStep(AdamMode::kAdamW), gradient, expected);
  FusedAdam(TypicalStep(AdamMode::kAdamW), gradient.data(), state.View(), 1, static_cast<int64_t>(master.size()), {},
            {}, {});
  EXPECT_TRUE(state.SameAs(expected));
}

TEST(FusedAdamTest, BitsAreAnyBits) {
  constexpr uint64_t kSeed = 12;
  constexpr int64_t kCount = 200000;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  RandomFloats random(kSeed);
  OwnedState state = {random.AnyBits(kCount), Moments(MomentType::kFP32, random.AnyBits(kCount)),
                      Moments(MomentType::kFP32, random.AnyBits(kCount))};
  const std::vector<float> gradient = random.AnyBits(kCount);
  OwnedState expected = state;
  SlowAdam(TypicalStep(AdamMode::kL2), gradient, expected);
  FusedAdam(TypicalStep(AdamMode::kL2), gradient.data(), state.View(), 1, kCount, {}, {}, {});
  EXPECT_TRUE(state.SameAs(expected));
}

TEST(FusedAdamTest, PlanesMayBeLeftOut) {
  RandomFloats random(13);
  OwnedState state = RandomState(random, 64 * 40, MomentType::kFP32, MomentType::kFP32);
  OwnedState expected = state;
  const std::vector<float> gradient = random.Mixed(64 * 40);
  SlowAdam(TypicalStep(AdamMode::kAdamW), gradient, expected);
  FusedAdam(TypicalStep(AdamMode::kAdamW), gradient.data(), state.View(), 64, 40, {Format::kMXFP8}, {}, {});
  EXPECT_TRUE(state.SameAs(expected));
}

TEST(BiasCorrectionTest, FirstStepIsOneMinusBeta) {
  EXPECT_EQ(BiasCorrection(0.5f, 1), 0.5f);
  EXPECT_EQ(BiasCorrection(0.5f, 2), 0.75f);
  EXPECT_EQ(BiasCorrection(0.9f, 1000000), 1.0f);
}

}  // namespace
}  // namespace paramshard
