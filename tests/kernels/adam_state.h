// The optimizer's state in memory of its own, for tests.

#ifndef PARAMSHARD_TESTS_KERNELS_ADAM_STATE_H_
#define PARAMSHARD_TESTS_KERNELS_ADAM_STATE_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/formats/bfloat16.h"
#include "kernels/optim/adam.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {

// A moment array in either type, read and written as float32.
class Moments {
 public:
  Moments(MomentType type, const std::vector<float>& values) : type_(type), bytes_(values.size() * MomentBytes(type)) {
    for (size_t i = 0; i < values.size(); ++i) Set(i, values[i]);
  }

  MomentType type() const { return type_; }
  void* data() { return bytes_.data(); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  float Get(size_t i) const {
    if (type_ == MomentType::kFP32) return std::bit_cast<float>(At<uint32_t>(i));
    return DecodeBFloat16(At<uint16_t>(i));
  }
  void Set(size_t i, float value) {
    const uint32_t bits = std::isnan(value) ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
    const uint16_t code = EncodeBFloat16(value);
    if (type_ == MomentType::kFP32) std::memcpy(&bytes_[i * 4], &bits, 4);
    if (type_ == MomentType::kBF16) std::memcpy(&bytes_[i * 2], &code, 2);
  }

  friend bool operator==(const Moments&, const Moments&) = default;

 private:
  template <typename T>
  T At(size_t i) const {
    T value;
    std::memcpy(&value, &bytes_[i * sizeof(T)], sizeof(T));
    return value;
  }

  MomentType type_;
  std::vector<uint8_t> bytes_;
};

struct OwnedState {
  AdamState View() {
    return {.master = master.data(),
            .exp_avg = {.data = exp_avg.data(), .type = exp_avg.type()},
            .exp_avg_sq = {.data = exp_avg_sq.data(), .type = exp_avg_sq.type()}};
  }

  bool SameAs(const OwnedState& other) const {
    return AsBytes(master) == AsBytes(other.master) && exp_avg == other.exp_avg && exp_avg_sq == other.exp_avg_sq;
  }

  std::vector<float> master;
  Moments exp_avg;
  Moments exp_avg_sq;
};

inline AdamStep TypicalStep(AdamMode mode) {
  AdamStep step;
  step.learning_rate = 2e-3f;
  step.weight_decay = 0.1f;
  step.mode = mode;
  step.bias_correction1 = BiasCorrection(step.beta1, 7);
  step.bias_correction2 = BiasCorrection(step.beta2, 7);
  step.gradient_scale = 0.37f;
  return step;
}

inline OwnedState RandomState(RandomFloats& random, int64_t count, MomentType exp_avg, MomentType exp_avg_sq) {
  std::vector<float> squares = random.Mixed(count);
  for (float& value : squares) value = std::fabs(value);
  return {random.Mixed(count), Moments(exp_avg, random.Mixed(count)), Moments(exp_avg_sq, squares)};
}

inline constexpr MomentType kMomentTypes[] = {MomentType::kFP32, MomentType::kBF16};
inline constexpr AdamMode kModes[] = {AdamMode::kAdamW, AdamMode::kL2};

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

#endif  // PARAMSHARD_TESTS_KERNELS_ADAM_STATE_H_
