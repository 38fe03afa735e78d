// The optimizer's state in memory of its own, for tests.

#ifndef PARAMSHARD_TESTS_KERNELS_OPTIMIZER_STATE_H_
#define PARAMSHARD_TESTS_KERNELS_OPTIMIZER_STATE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float8.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/optimizers.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {

// A moment in any type, read and written as float32 by the definition of moment.h.
class Moments {
 public:
  Moments(MomentKind kind, MomentType type, int64_t rows, int64_t cols, const std::vector<float>& values)
      : kind_(kind),
        type_(type),
        rows_(rows),
        cols_(cols),
        bytes_(values.size() * MomentBytes(type)),
        scales_(MomentScaleCount(type, rows, cols)) {
    Set(values);
  }
  // A type without scales, whose shape does not matter.
  Moments(MomentType type, const std::vector<float>& values)
      : Moments(MomentKind::kFirst, type, 1, static_cast<int64_t>(values.size()), values) {}

  MomentType type() const { return type_; }
  MutableMoment View() { return {bytes_.data(), scales_.data(), type_}; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  const std::vector<float>& scales() const { return scales_; }

  std::vector<float> Get() const {
    std::vector<float> values(rows_ * cols_);
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      values[i] = Decode(i);
      if (!HasMomentScales(type_)) continue;
      values[i] *= scales_[Block(i)];
      if (kind_ == MomentKind::kSecond) values[i] *= values[i];
    }
    for (float& value : values) value = CanonicalNan(value);
    return values;
  }

  void Set(std::vector<float> values) {
    if (HasMomentScales(type_)) Scale(values);
    for (int64_t i = 0; i < rows_ * cols_; ++i) Encode(i, values[i]);
  }

  friend bool operator==(const Moments& a, const Moments& b) {
    return a.bytes_ == b.bytes_ && AsBytes(a.scales_) == AsBytes(b.scales_);
  }

 private:
  int64_t Block(int64_t i) const { return i / cols_ * ((cols_ + 127) / 128) + i % cols_ / 128; }

  // Sets the scales of blocks, and divides the values by them, so that they can be cast.
  void Scale(std::vector<float>& values) {
    std::fill(scales_.begin(), scales_.end(), 0.0f);
    for (size_t i = 0; i < values.size(); ++i) {
      if (kind_ == MomentKind::kSecond) values[i] = std::sqrt(values[i]);
      float& amax = scales_[Block(static_cast<int64_t>(i))];
      if (std::fabs(values[i]) > amax) amax = std::fabs(values[i]);
    }
    for (float& scale : scales_) {
      scale /= type_ == MomentType::kFP8 ? 448.0f : 65504.0f;
      if (scale == 0.0f || std::isinf(scale)) scale = 1.0f;
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] /= scales_[Block(static_cast<int64_t>(i))];
  }

  float Decode(int64_t i) const {
    switch (type_) {
      case MomentType::kFP32:
        return std::bit_cast<float>(At<uint32_t>(i));
      case MomentType::kBF16:
        return DecodeBFloat16(At<uint16_t>(i));
      case MomentType::kFP16:
        return DecodeFloat16(At<uint16_t>(i));
      case MomentType::kFP8:
        return E4M3::Decode(At<uint8_t>(i));
    }
    std::abort();
  }

  void Encode(int64_t i, float value) {
    switch (type_) {
      case MomentType::kFP32:
        return Put(i, std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value));
      case MomentType::kBF16:
        return Put(i, EncodeBFloat16(value));
      case MomentType::kFP16:
        return Put(i, EncodeFloat16Saturating(value));
      case MomentType::kFP8:
        return Put(i, E4M3::Encode(value));
    }
  }

  template <typename T>
  T At(int64_t i) const {
    T value;
    std::memcpy(&value, &bytes_[i * sizeof(T)], sizeof(T));
    return value;
  }
  template <typename T>
  void Put(int64_t i, T value) {
    std::memcpy(&bytes_[i * sizeof(T)], &value, sizeof(T));
  }

  MomentKind kind_;
  MomentType type_;
  int64_t rows_;
  int64_t cols_;
  std::vector<uint8_t> bytes_;
  std::vector<float> scales_;
};

struct OwnedState {
  OptimizerState View() {
    OptimizerState state = {.master = master.data(), .moments = {exp_avg.View(), exp_avg_sq.View()}};
    DropMoments(state);
    return state;
  }
  // Leaves the moments that the optimizer keeps.
  void DropMoments(OptimizerState& state) const {
    for (int i = moment_count; i < kMomentCount; ++i) state.moments.values[i] = {};
  }

  bool SameAs(const OwnedState& other) const {
    return AsBytes(master) == AsBytes(other.master) && exp_avg == other.exp_avg && exp_avg_sq == other.exp_avg_sq;
  }

  std::vector<float> master;
  Moments exp_avg;
  Moments exp_avg_sq;
  int moment_count = kMomentCount;
};

// Returns the optimizers that a fused step is all of: Muon has tests of its own.
inline std::vector<OptimizerTraits> ElementwiseOptimizers() {
  std::vector<OptimizerTraits> optimizers;
  for (const OptimizerTraits& traits : kOptimizers) {
    if (!IsMuon(traits.optimizer)) optimizers.push_back(traits);
  }
  return optimizers;
}

// Returns one of the optimizers that keep as many moments.
inline Optimizer AnyOptimizer(RandomFloats& random, int moment_count) {
  std::vector<Optimizer> optimizers;
  for (const OptimizerTraits& traits : ElementwiseOptimizers()) {
    if (traits.moment_count == moment_count) optimizers.push_back(traits.optimizer);
  }
  return optimizers[random.Integer(0, static_cast<int64_t>(optimizers.size()) - 1)];
}

inline OptimizerStep TypicalStep(Optimizer optimizer) {
  OptimizerStep step;
  step.learning_rate = 2e-3f;
  step.weight_decay = 0.1f;
  step.optimizer = optimizer;
  step.momentum = 0.9f;
  step.dampening = 0.1f;
  step.bias_correction1 = BiasCorrection(step.beta1, 7);
  step.bias_correction2 = BiasCorrection(step.beta2, 7);
  step.gradient_scale = 0.37f;
  return step;
}

inline OwnedState RandomState(RandomFloats& random, int64_t rows, int64_t cols, MomentType exp_avg,
                              MomentType exp_avg_sq, int moment_count = kMomentCount) {
  const int64_t count = rows * cols;
  std::vector<float> squares = random.Mixed(count);
  for (float& value : squares) value = std::fabs(value);
  return {random.Mixed(count), Moments(MomentKind::kFirst, exp_avg, rows, cols, random.Mixed(count)),
          Moments(MomentKind::kSecond, exp_avg_sq, rows, cols, squares), moment_count};
}

// Values whose quotients and roots are subnormal, overflow, or are not numbers.
inline std::vector<float> Extremes() {
  std::vector<float> values;
  for (float magnitude : {0.0f, 0x1p-149f, 0x1.8p-140f, 0x1p-126f, 0x1p-100f, 0x1p-63f, 1e-8f, 1.0f, 3.3e12f, 0x1p64f,
                          0x1p100f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    values.push_back(magnitude);
    values.push_back(-magnitude);
  }
  return values;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_OPTIMIZER_STATE_H_
