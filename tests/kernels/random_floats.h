// Random float32 test inputs. A test names its seed with SCOPED_TRACE.

#ifndef PARAMSHARD_TESTS_KERNELS_RANDOM_FLOATS_H_
#define PARAMSHARD_TESTS_KERNELS_RANDOM_FLOATS_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace paramshard {

class RandomFloats {
 public:
  explicit RandomFloats(uint64_t seed) : generator_(seed) {}

  // Uniform in [low, high].
  int64_t Integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }

  std::vector<float> Normal(int64_t count, float standard_deviation) {
    std::normal_distribution<float> normal(0.0f, standard_deviation);
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator_);
    return values;
  }

  // Any bits: NaN, infinities and subnormals included.
  std::vector<float> AnyBits(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(generator_()));
    return values;
  }

  // Mostly normal numbers of many magnitudes; one in 64 has any bits.
  std::vector<float> Mixed(int64_t count) {
    std::vector<float> values = Normal(count, 1.0f);
    for (float& value : values) {
      value = std::ldexp(value, static_cast<int>(Integer(-12, 12)));
      if (Integer(0, 63) == 0) value = AnyBits(1).front();
    }
    return values;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_RANDOM_FLOATS_H_
