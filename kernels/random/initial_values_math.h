// The initial value of one element (see initial_values.h), with the same bits on host and device.
//
// Double arithmetic in the order written: +, -, *, / and sqrt only, which IEEE-754 rounds exactly. Library logarithms
// and cosines differ between machines, so both are polynomials here, good to a few ulps of a double.

#ifndef PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_MATH_H_
#define PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/random/philox.h"

namespace paramshard {

// ln(x) for a normal x > 0. With x = m * 2^e and m in [sqrt(1/2), sqrt(2)): ln(m) = 2 artanh(f), f = (m - 1) / (m + 1),
// |f| < 0.172, by its Taylor series.
PARAMSHARD_HOST_DEVICE double NaturalLog(double x) {
  constexpr double kLn2 = 0.69314718055994530942;
  constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcdull;
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  // The exponent is counted from sqrt(1/2) instead of 1, which centers m on 1.
  const uint32_t biased_exponent = static_cast<uint32_t>((bits - kSqrtHalfBits + (1023ull << 52)) >> 52);
  const int32_t exponent = static_cast<int32_t>(biased_exponent) - 1023;
  const uint64_t mantissa_bits = bits - (static_cast<uint64_t>(static_cast<int64_t>(exponent)) << 52);
  double m;
  memcpy(&m, &mantissa_bits, sizeof(m));
  const double f = (m - 1.0) / (m + 1.0);
  const double s = f * f;
  double sum = 1.0 / 21.0;
  sum = sum * s + 1.0 / 19.0;
  sum = sum * s + 1.0 / 17.0;
  sum = sum * s + 1.0 / 15.0;
  sum = sum * s + 1.0 / 13.0;
  sum = sum * s + 1.0 / 11.0;
  sum = sum * s + 1.0 / 9.0;
  sum = sum * s + 1.0 / 7.0;
  sum = sum * s + 1.0 / 5.0;
  sum = sum * s + 1.0 / 3.0;
  sum = sum * s + 1.0;
  return static_cast<double>(exponent) * kLn2 + (2.0 * f) * sum;
}

// cos(2 pi turns) for turns in [0, 1]: the nearest quarter turn, then a Taylor series of at most pi/4.
PARAMSHARD_HOST_DEVICE double CosineOfTurns(double turns) {
  constexpr double kHalfPi = 1.57079632679489661923;
  const int32_t quarter = static_cast<int32_t>(turns * 4.0 + 0.5);
  const double x = (turns * 4.0 - static_cast<double>(quarter)) * kHalfPi;
  const double s = x * x;
  double cosine = -1.0 / 6402373705728000.0;
  cosine = cosine * s + 1.0 / 20922789888000.0;
  cosine = cosine * s - 1.0 / 87178291200.0;
  cosine = cosine * s + 1.0 / 479001600.0;
  cosine = cosine * s - 1.0 / 3628800.0;
  cosine = cosine * s + 1.0 / 40320.0;
  cosine = cosine * s - 1.0 / 720.0;
  cosine = cosine * s + 1.0 / 24.0;
  cosine = cosine * s - 1.0 / 2.0;
  cosine = cosine * s + 1.0;
  double sine = 1.0 / 355687428096000.0;
  sine = sine * s - 1.0 / 1307674368000.0;
  sine = sine * s + 1.0 / 6227020800.0;
  sine = sine * s - 1.0 / 39916800.0;
  sine = sine * s + 1.0 / 362880.0;
  sine = sine * s - 1.0 / 5040.0;
  sine = sine * s + 1.0 / 120.0;
  sine = sine * s - 1.0 / 6.0;
  sine = sine * s + 1.0;
  sine = sine * x;
  // cos(q * pi/2 + x) is cos x, -sin x, -cos x, sin x for q = 0, 1, 2, 3.
  const double magnitude = (quarter & 1) != 0 ? sine : cosine;
  return ((quarter + 1) & 2) != 0 ? -magnitude : magnitude;
}

// The largest float below a finite `value`.
PARAMSHARD_HOST_DEVICE float NextBelow(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t away_from_zero = value > 0.0f ? bits - 1 : bits + 1;
  return FloatFromBits(value == 0.0f ? (kFloatSignBit | 1u) : away_from_zero);
}

// The random words of one element.
PARAMSHARD_HOST_DEVICE PhiloxBlock ElementWords(uint64_t seed, uint64_t parameter_index, uint64_t element) {
  const PhiloxKey key = {{static_cast<uint32_t>(seed), static_cast<uint32_t>(parameter_index)}};
  const PhiloxCounter counter = {{static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
                                  static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(parameter_index >> 32)}};
  return Philox4x32(counter, key);
}

// Uniform in [low, high).
PARAMSHARD_HOST_DEVICE float UniformValue(PhiloxBlock words, float low, float high) {
  const double u = UnitDouble(words.word[0], words.word[1]);
  const double width = static_cast<double>(high) - static_cast<double>(low);
  const float value = static_cast<float>(static_cast<double>(low) + width * u);
  return value < high ? value : NextBelow(high);
}

// Normal, by Box and Muller's method.
PARAMSHARD_HOST_DEVICE float NormalValue(PhiloxBlock words, float mean, float standard_deviation) {
  // In (0, 1], so that the logarithm is finite.
  const double u = 1.0 - UnitDouble(words.word[0], words.word[1]);
  const double v = UnitDouble(words.word[2], words.word[3]);
  const double z = sqrt(-2.0 * NaturalLog(u)) * CosineOfTurns(v);
  return static_cast<float>(static_cast<double>(mean) + static_cast<double>(standard_deviation) * z);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_MATH_H_
