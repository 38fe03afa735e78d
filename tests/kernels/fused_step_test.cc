#include "kernels/optim/fused_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/optim/master_remainder.h"
#include "kernels/optim/optimizers.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/effort.h"

namespace paramshard {
namespace {

// Rounds to float32, even if the compiler would keep more precision between operations.
float Round(float value) {
  volatile float rounded = value;
  return rounded;
}

float Sum(float a, float b) { return Round(a + b); }
float Product(float a, float b) { return Round(a * b); }

// One element of the state.
struct Element {
  float p, m, v;
};

// The formulas of docs/reference/numerics.md, written out.
Element SlowAdam(const OptimizerStep& s, float g, const Element& old) {
  if (s.optimizer == Optimizer::kAdam) g = Sum(g, Product(s.weight_decay, old.p));
  const float m = Sum(Product(s.beta1, old.m), Product(Round(1.0f - s.beta1), g));
  const float v = Sum(Product(s.beta2, old.v), Product(Product(Round(1.0f - s.beta2), g), g));
  const float mh = Round(m / s.bias_correction1);
  const float vh = Round(v / s.bias_correction2);
  float change = Round(mh / Sum(Round(std::sqrt(vh)), s.epsilon));
  if (s.optimizer == Optimizer::kAdamW) change = Sum(change, Product(s.weight_decay, old.p));
  return {Round(old.p - Product(s.learning_rate, change)), m, v};
}

Element SlowSgd(const OptimizerStep& s, float g, const Element& old) {
  g = Sum(g, Product(s.weight_decay, old.p));
  if (s.optimizer == Optimizer::kSgd) return {Round(old.p - Product(s.learning_rate, g)), old.m, old.v};
  const float m = Sum(Product(s.momentum, old.m), Product(Round(1.0f - s.dampening), g));
  const float change = s.optimizer == Optimizer::kSgdNesterov ? Sum(g, Product(s.momentum, m)) : m;
  return {Round(old.p - Product(s.learning_rate, change)), m, old.v};
}

Element SlowLion(const OptimizerStep& s, float g, const Element& old) {
  const float c = Sum(Product(s.beta1, old.m), Product(Round(1.0f - s.beta1), g));
  const float sign = std::isnan(c) || c == 0.0f ? c : std::copysign(1.0f, c);
  const float kept = Product(old.p, Round(1.0f - Product(s.learning_rate, s.weight_decay)));
  return {Round(kept - Product(s.learning_rate, sign)), Sum(Product(s.beta2, old.m), Product(Round(1.0f - s.beta2), g)),
          old.v};
}

Element SlowStep(const OptimizerStep& s, float g, const Element& old) {
  switch (s.optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kAdam:
      return SlowAdam(s, g, old);
    case Optimizer::kSgd:
    case Optimizer::kSgdMomentum:
    case Optimizer::kSgdNesterov:
      return SlowSgd(s, g, old);
    case Optimizer::kLion:
      return SlowLion(s, g, old);
    case Optimizer::kMuon:
    case Optimizer::kMuonNesterov:
      break;  // muon_test
  }
  return {};
}

// Moments that the optimizer does not keep stay as they are.
void SlowStep(const OptimizerStep& step, const std::vector<float>& gradient, OwnedState& state) {
  std::vector<float> first = state.exp_avg.Get();
  std::vector<float> second = state.exp_avg_sq.Get();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const Element element =
        SlowStep(step, Product(gradient[i], step.gradient_scale), {state.master[i], first[i], second[i]});
    state.master[i] = std::isnan(element.p) ? std::bit_cast<float>(0x7fc00000u) : element.p;
    first[i] = element.m;
    second[i] = element.v;
  }
  const int moments = TraitsOf(step.optimizer).moment_count;
  if (moments > 0) state.exp_avg.Set(first);
  if (moments > 1) state.exp_avg_sq.Set(second);
}

// Returns the planes after a step. Formats that wait for the amax of all ranks keep their old planes.
OwnedPlanes ExpectedPlanes(const Encoding& encoding, const std::vector<float>& master, int64_t rows, int64_t cols,
                           const TensorScaling& scaling) {
  if (EncodesAfterAmax(encoding.format)) return OwnedPlanes(encoding, rows, cols);
  return Encode(encoding, master, rows, cols, scaling);
}

TEST(FusedStepTest, StepIsTheWrittenFormulaThenTheEncoding) {
  constexpr uint64_t kSeed = 11;
  RandomFloats random(kSeed);
  int count = 0;
  for (const Encoding& encoding : AllEncodings()) {
    for (MomentType exp_avg : kMomentTypes) {
      for (MomentType exp_avg_sq : kMomentTypes) {
        for (const OptimizerTraits& optimizer : ElementwiseOptimizers()) {
          if (count++ % Stride() != 0) continue;
          const int64_t rows = random.Integer(0, 150);
          const int64_t cols = random.Integer(1, 300);
          SCOPED_TRACE(absl::StrCat("seed ", kSeed, " ", FormatName(encoding.format), " ", rows, " x ", cols));
          OwnedState state = RandomState(random, rows, cols, exp_avg, exp_avg_sq, optimizer.moment_count);
          const std::vector<float> gradient = random.Mixed(rows * cols);
          OwnedState expected = state;
          SlowStep(TypicalStep(optimizer.optimizer), gradient, expected);
          OwnedPlanes planes(encoding, rows, cols);
          const TensorScaling scaling = {.scale = 3.3f};
          const float amax = FusedStep(TypicalStep(optimizer.optimizer), gradient.data(), state.View(), rows, cols,
                                       encoding, planes.row_wise.View(), planes.column_wise.View(), scaling);
          EXPECT_TRUE(state.SameAs(expected));
          EXPECT_TRUE(planes == ExpectedPlanes(encoding, expected.master, rows, cols, scaling));
          EXPECT_EQ(amax, NeedsAmax(encoding.format) ? ScalingOf(expected.master).amax : 0.0f);
        }
      }
    }
  }
}

TEST(FusedStepTest, ExtremeValuesFollowTheFormula) {
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
  const OwnedState state = {master, Moments(MomentType::kFP32, exp_avg), Moments(MomentType::kFP32, exp_avg_sq)};
  for (const OptimizerTraits& optimizer : ElementwiseOptimizers()) {
    SCOPED_TRACE(optimizer.name);
    OwnedState stepped = state;
    OwnedState expected = state;
    SlowStep(TypicalStep(optimizer.optimizer), gradient, expected);
    FusedStep(TypicalStep(optimizer.optimizer), gradient.data(), stepped.View(), 1, static_cast<int64_t>(master.size()),
              {}, {}, {});
    EXPECT_TRUE(stepped.SameAs(expected));
  }
}

TEST(FusedStepTest, BitsAreAnyBits) {
  constexpr uint64_t kSeed = 12;
  constexpr int64_t kCount = 200000;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  RandomFloats random(kSeed);
  OwnedState state = {random.AnyBits(kCount), Moments(MomentType::kFP32, random.AnyBits(kCount)),
                      Moments(MomentType::kFP32, random.AnyBits(kCount))};
  const std::vector<float> gradient = random.AnyBits(kCount);
  for (const OptimizerTraits& optimizer : ElementwiseOptimizers()) {
    SCOPED_TRACE(optimizer.name);
    OwnedState expected = state;
    SlowStep(TypicalStep(optimizer.optimizer), gradient, expected);
    FusedStep(TypicalStep(optimizer.optimizer), gradient.data(), state.View(), 1, kCount, {}, {}, {});
    EXPECT_TRUE(state.SameAs(expected));
  }
}

// Steps rows [first, last) by themselves, in the state of the whole.
void StepExtent(OwnedState& state, const std::vector<float>& gradient, const Encoding& encoding, int64_t first,
                int64_t last, int64_t cols) {
  const OptimizerState whole = state.View();
  const OptimizerState extent = {.master = whole.master + first * cols,
                                 .moments = {MomentAt(whole.moments[MomentKind::kFirst], cols, first, 0),
                                             MomentAt(whole.moments[MomentKind::kSecond], cols, first, 0)}};
  FusedStep(TypicalStep(Optimizer::kAdamW), gradient.data() + first * cols, extent, last - first, cols, encoding, {},
            {});
}

TEST(FusedStepTest, ExtentsGiveTheWholesState) {
  constexpr uint64_t kSeed = 14;
  RandomFloats random(kSeed);
  for (const Encoding& encoding : AllEncodings()) {
    for (MomentType type : kMomentTypes) {
      const int64_t rows = random.Integer(1, 400);
      const int64_t cols = random.Integer(1, 300);
      const int64_t extent = GranuleRows(encoding.format) * random.Integer(1, 3);
      SCOPED_TRACE(
          absl::StrCat("seed ", kSeed, " ", FormatName(encoding.format), " ", rows, " x ", cols, " by ", extent));
      OwnedState state = RandomState(random, rows, cols, type, type);
      OwnedState sharded = state;
      const std::vector<float> gradient = random.Mixed(rows * cols);
      StepExtent(state, gradient, encoding, 0, rows, cols);
      for (int64_t first = 0; first < rows; first += extent) {
        StepExtent(sharded, gradient, encoding, first, std::min(rows, first + extent), cols);
      }
      ASSERT_TRUE(sharded.SameAs(state));
    }
  }
}

TEST(FusedStepTest, MasterWithRemainderStepsLikeTheWholeMaster) {
  constexpr uint64_t kSeed = 15;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  RandomFloats random(kSeed);
  const Encoding encoding = {Format::kBF16};
  for (MomentType type : kMomentTypes) {
    const int64_t rows = random.Integer(1, 50);
    const int64_t cols = random.Integer(1, 5000);
    OwnedState state = RandomState(random, rows, cols, type, type);
    OwnedState split = state;
    OwnedPlane weights(encoding, Plane::kRowWise, rows, cols);
    std::vector<int16_t> remainders(rows * cols);
    SplitMasters(split.master.data(), rows * cols, weights.data.data(), remainders.data());
    OptimizerState view = split.View();
    view.master = nullptr;
    view.remainder = remainders.data();

    const std::vector<float> gradient = random.Mixed(rows * cols);
    const OptimizerStep step = TypicalStep(Optimizer::kAdamW);
    FusedStep(step, gradient.data(), state.View(), rows, cols, encoding, {}, {});
    FusedStep(step, gradient.data(), view, rows, cols, encoding, weights.View(), {});
    JoinMasters(weights.data.data(), remainders.data(), rows * cols, split.master.data());
    EXPECT_TRUE(split.SameAs(state));
  }
}

// An array that a step reads in one place and leaves `distance` bytes further on.
class MovedArray {
 public:
  MovedArray(std::vector<uint8_t> bytes, int64_t distance, int64_t offset)
      : bytes_(std::move(bytes)),
        from_(offset + std::max<int64_t>(-distance, 0)),
        to_(from_ + distance),
        memory_(offset + std::abs(distance) + bytes_.size(), 0xa5) {
    std::copy(bytes_.begin(), bytes_.end(), memory_.begin() + from_);
  }

  template <typename T>
  T* To() {
    return bytes_.empty() ? nullptr : reinterpret_cast<T*>(memory_.data() + to_);
  }
  std::vector<uint8_t> Left() const { return At(to_); }
  bool IsIntact() const { return At(from_) == bytes_; }

 private:
  std::vector<uint8_t> At(int64_t first) const {
    return {memory_.begin() + first, memory_.begin() + first + static_cast<int64_t>(bytes_.size())};
  }

  std::vector<uint8_t> bytes_;
  int64_t from_, to_;
  std::vector<uint8_t> memory_;
};

// A state that moves, and the same state in place, with a master in one array or in two.
class MovedAndInPlace {
 public:
  MovedAndInPlace(const OwnedState& state, const Encoding& encoding, int64_t rows, int64_t cols, bool is_split,
                  int64_t distance, int64_t offset)
      : encoding_(encoding),
        rows_(rows),
        cols_(cols),
        is_split_(is_split),
        distance_(distance),
        state_(state),
        weights_(encoding, rows, cols),
        planes_(encoding, rows, cols),
        remainders_(is_split ? rows * cols : 0) {
    if (is_split_) {
      SplitMasters(state_.master.data(), rows * cols, weights_.row_wise.data.data(), remainders_.data());
    }
    const auto add = [&](std::vector<uint8_t> bytes) { arrays_.emplace_back(std::move(bytes), distance, offset); };
    add(is_split_ ? std::vector<uint8_t>() : AsBytes(state_.master));
    add(AsBytes(remainders_));
    add(is_split_ ? weights_.row_wise.data : std::vector<uint8_t>());
    const Moments* const moments[] = {&state_.exp_avg, &state_.exp_avg_sq};
    for (int i = 0; i < kMomentCount; ++i) {
      const bool is_kept = i < state_.moment_count;
      add(is_kept ? moments[i]->bytes() : std::vector<uint8_t>());
      add(is_kept ? AsBytes(moments[i]->scales()) : std::vector<uint8_t>());
    }
  }

  void Step(const OptimizerStep& step, ConstGradient gradient) {
    const TensorScaling scaling = {.scale = 3.3f};
    OptimizerState moved = {.master = arrays_[0].To<float>(),
                            .remainder = arrays_[1].To<int16_t>(),
                            .moments = {{{arrays_[3].To<void>(), arrays_[4].To<float>(), state_.exp_avg.type()},
                                         {arrays_[5].To<void>(), arrays_[6].To<float>(), state_.exp_avg_sq.type()}}},
                            .weights = arrays_[2].To<uint16_t>()};
    state_.DropMoments(moved);
    const float amax = FusedStep(step, gradient, moved, rows_, cols_, encoding_, planes_.row_wise.View(),
                                 planes_.column_wise.View(), scaling, distance_);
    OptimizerState in_place = state_.View();
    if (is_split_) {
      in_place.master = nullptr;
      in_place.remainder = remainders_.data();
    }
    EXPECT_EQ(amax, FusedStep(step, gradient, in_place, rows_, cols_, encoding_, weights_.row_wise.View(),
                              weights_.column_wise.View(), scaling));
  }

  void Check() const {
    for (const MovedArray& array : arrays_) EXPECT_TRUE(array.IsIntact());
    EXPECT_TRUE(arrays_[0].Left() == (is_split_ ? std::vector<uint8_t>() : AsBytes(state_.master)));
    EXPECT_TRUE(arrays_[1].Left() == AsBytes(remainders_));
    EXPECT_TRUE(arrays_[2].Left() == (is_split_ ? weights_.row_wise.data : std::vector<uint8_t>()));
    const Moments* const moments[] = {&state_.exp_avg, &state_.exp_avg_sq};
    for (int i = 0; i < state_.moment_count; ++i) {
      EXPECT_TRUE(arrays_[3 + 2 * i].Left() == moments[i]->bytes());
      EXPECT_TRUE(arrays_[4 + 2 * i].Left() == AsBytes(moments[i]->scales()));
    }
    EXPECT_TRUE(planes_ == weights_);
  }

 private:
  const Encoding encoding_;
  const int64_t rows_, cols_;
  const bool is_split_;
  const int64_t distance_;
  OwnedState state_;
  OwnedPlanes weights_;  // of the state in place; of a master in two arrays the upper half
  OwnedPlanes planes_;
  std::vector<int16_t> remainders_;
  // Masters, remainders, weights; elements and scales of both moments.
  std::vector<MovedArray> arrays_;
};

TEST(FusedStepTest, AStateThatMovesGivesTheBytesOfOneThatStaysAndLeavesWhatItRead) {
  constexpr uint64_t kSeed = 17;
  RandomFloats random(kSeed);
  const std::vector<OptimizerTraits> optimizers = ElementwiseOptimizers();
  const auto check = [&](const Encoding& encoding, MomentType exp_avg, MomentType exp_avg_sq, bool is_split) {
    const bool is_wide = random.Integer(0, 3) == 0;
    const int64_t rows = random.Integer(0, is_wide ? 3 : 150);
    const int64_t cols = is_wide ? random.Integer(1000, 3000) : random.Integer(1, 40);
    const int64_t distance = (rows * cols * 4 / 512 + 1) * (random.Integer(0, 1) == 0 ? 512 : -512);
    const int64_t offset = 4 * random.Integer(0, 40);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " ", FormatName(encoding.format), " ", MomentTypeName(exp_avg), " ",
                              MomentTypeName(exp_avg_sq), " ", rows, " x ", cols, " by ", distance));
    const OptimizerTraits optimizer = optimizers[random.Integer(0, static_cast<int64_t>(optimizers.size()) - 1)];
    MovedAndInPlace states(RandomState(random, rows, cols, exp_avg, exp_avg_sq, optimizer.moment_count), encoding, rows,
                           cols, is_split, distance, offset);
    const OptimizerStep step = TypicalStep(optimizer.optimizer);
    const std::vector<float> gradient = random.Mixed(rows * cols);
    std::vector<uint16_t> half(rows * cols);
    for (size_t i = 0; i < half.size(); ++i) half[i] = EncodeBFloat16(gradient[i]);
    const bool is_half = random.Integer(0, 1) == 0;
    states.Step(step, is_half ? ConstGradient{half.data(), GradientType::kBF16} : ConstGradient(gradient.data()));
    states.Check();
  };
  for (MomentType exp_avg : kMomentTypes) {
    for (MomentType exp_avg_sq : kMomentTypes) {
      for (const Encoding& encoding : AllEncodings()) check(encoding, exp_avg, exp_avg_sq, /*is_split=*/false);
      check({Format::kBF16}, exp_avg, exp_avg_sq, /*is_split=*/true);
    }
  }
}

TEST(FusedStepTest, BlocksOfMomentsThatAreZeroOrNotFiniteDoNoHarm) {
  constexpr int64_t kCols = 300;
  for (MomentType type : {MomentType::kFP16, MomentType::kFP8}) {
    std::vector<float> moments(kCols, 0.0f);
    moments[130] = std::numeric_limits<float>::infinity();
    moments[131] = 1.0f;
    OwnedState state = {std::vector<float>(kCols, 1.0f), Moments(MomentKind::kFirst, type, 1, kCols, moments),
                        Moments(MomentKind::kSecond, type, 1, kCols, moments)};
    const std::vector<float> gradient(kCols, 0.0f);
    FusedStep(TypicalStep(Optimizer::kAdamW), gradient.data(), state.View(), 1, kCols, {}, {}, {});
    for (float value : state.master) EXPECT_TRUE(std::isfinite(value));
    for (float value : state.exp_avg.Get()) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(state.exp_avg_sq.Get()[0], 0.0f);
  }
}

TEST(FusedStepTest, BFloat16GradientsStepLikeTheSameOnesWidened) {
  RandomFloats random(31);
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 71;
  std::vector<uint16_t> stored;
  std::vector<float> widened;
  for (float value : random.Mixed(kRows * kCols)) {
    stored.push_back(EncodeBFloat16(value));
    widened.push_back(DecodeBFloat16(stored.back()));
  }
  for (MomentType moments : kMomentTypes) {
    for (const Encoding& encoding : {Encoding{Format::kBF16}, Encoding{Format::kMXFP8}}) {
      SCOPED_TRACE(absl::StrCat(FormatName(encoding.format), " ", MomentTypeName(moments)));
      OwnedState expected = RandomState(random, kRows, kCols, moments, moments);
      OwnedState state = expected;
      FusedStep(TypicalStep(Optimizer::kAdamW), widened.data(), expected.View(), kRows, kCols, encoding, {}, {});
      FusedStep(TypicalStep(Optimizer::kAdamW), {stored.data(), GradientType::kBF16}, state.View(), kRows, kCols,
                encoding, {}, {});
      EXPECT_TRUE(state.SameAs(expected));
    }
  }
}

TEST(FusedStepTest, EmptyExtentIsLeftAlone) {
  for (const Encoding& encoding : AllEncodings()) {
    for (MomentType type : kMomentTypes) {
      const OptimizerState state = {.moments = {{{.type = type}, {.type = type}}}};
      EXPECT_EQ(FusedStep(TypicalStep(Optimizer::kAdam), nullptr, state, 0, 70, encoding, {}, {}), 0.0f);
    }
  }
}

TEST(FusedStepTest, PlanesMayBeLeftOut) {
  RandomFloats random(13);
  OwnedState state = RandomState(random, 64, 40, MomentType::kFP32, MomentType::kFP32);
  OwnedState expected = state;
  const std::vector<float> gradient = random.Mixed(64 * 40);
  SlowStep(TypicalStep(Optimizer::kAdamW), gradient, expected);
  FusedStep(TypicalStep(Optimizer::kAdamW), gradient.data(), state.View(), 64, 40, {Format::kMXFP8}, {}, {});
  EXPECT_TRUE(state.SameAs(expected));
}

TEST(FusedStepDeathTest, RemainderWithoutItsWeightsIsOurBug) {
  int16_t remainder = 0;
  OptimizerState state;
  state.remainder = &remainder;
  EXPECT_DEATH(FusedStep({}, nullptr, state, 1, 1, {Format::kBF16}, {}, {}), "check failed");
}

TEST(FusedStepDeathTest, AMasterWhoseWeightsAreAPlaneDoesNotMove) {
  int16_t remainder[2] = {};
  uint8_t plane[2] = {};
  OptimizerState state;
  state.remainder = remainder + 1;
  EXPECT_DEATH(FusedStep({}, nullptr, state, 0, 1, {Format::kBF16}, {plane}, {}, {}, sizeof(int16_t)), "check failed");
}

TEST(FusedStepDeathTest, NumberThatIsNoOptimizerIsOurBug) {
  for (const int number : {0, kOptimizerCount + 1}) {
    EXPECT_DEATH(FusedStep(TypicalStep(static_cast<Optimizer>(number)), nullptr, {}, 0, 1, {}, {}, {}), "check failed");
  }
}

TEST(MakeStepTest, TheFirstStepHasNoDampening) {
  const Hyperparameters values = {.momentum = 0.9f, .dampening = 0.5f};
  EXPECT_EQ(MakeStep(Optimizer::kSgdMomentum, values, /*bias_correction=*/true, 1, 1.0f).dampening, 0.0f);
  EXPECT_EQ(MakeStep(Optimizer::kSgdMomentum, values, /*bias_correction=*/true, 2, 1.0f).dampening, 0.5f);
}

TEST(MakeStepTest, BiasIsCorrectedOnRequest) {
  const OptimizerStep corrected = MakeStep(Optimizer::kAdamW, {}, /*bias_correction=*/true, 3, 0.5f);
  EXPECT_EQ(corrected.bias_correction1, BiasCorrection(0.9f, 3));
  EXPECT_EQ(corrected.bias_correction2, BiasCorrection(0.999f, 3));
  EXPECT_EQ(corrected.gradient_scale, 0.5f);
  const OptimizerStep plain = MakeStep(Optimizer::kAdamW, {}, /*bias_correction=*/false, 3, 0.5f);
  EXPECT_EQ(plain.bias_correction1, 1.0f);
  EXPECT_EQ(plain.bias_correction2, 1.0f);
}

TEST(BiasCorrectionTest, FirstStepIsOneMinusBeta) {
  EXPECT_EQ(BiasCorrection(0.5f, 1), 0.5f);
  EXPECT_EQ(BiasCorrection(0.5f, 2), 0.75f);
  EXPECT_EQ(BiasCorrection(0.9f, 1000000), 1.0f);
}

}  // namespace
}  // namespace paramshard
