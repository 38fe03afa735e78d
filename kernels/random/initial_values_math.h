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
  // Never negative. NOLINTNEXTLINE(bugprone-incorrect-roundings)
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

// c[0] + c[1] x + c[2] x^2 + ... + c[7] x^7.
PARAMSHARD_HOST_DEVICE double Polynomial7(const double (&c)[8], double x) {
  double sum = c[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

// Returns the standard normal's inverse distribution function at the probability 0.5 + q with |q| <= 0.5. `tail` is the
// distance to the nearer of 0 and 1; 2^-1022 <= tail <= 0.5. Three quotients of polynomials: Wichura, "Algorithm AS
// 241: The Percentage Points of the Normal Distribution" (1988), PPND16, good to about 1e-16.
PARAMSHARD_HOST_DEVICE double InverseNormal(double q, double tail) {
  if (q >= -0.425 && q <= 0.425) {
    constexpr double kNumerator[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                     1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                     3.3430575583588128105e+4, 2.5090809287301226727e+3};
    constexpr double kDenominator[] = {1.0,
                                       4.2313330701600911252e+1,
                                       6.8718700749205790830e+2,
                                       5.3941960214247511077e+3,
                                       2.1213794301586595867e+4,
                                       3.9307895800092710610e+4,
                                       2.8729085735721942674e+4,
                                       5.2264952788528545610e+3};
    const double r = 0.180625 - q * q;
    return q * Polynomial7(kNumerator, r) / Polynomial7(kDenominator, r);
  }
  double r = sqrt(-NaturalLog(tail));
  double magnitude;
  if (r <= 5.0) {
    constexpr double kNumerator[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                     3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                     2.27238449892691845833e-2, 7.74545014278341407640e-4};
    constexpr double kDenominator[] = {1.0,
                                       2.05319162663775882187e0,
                                       1.67638483018380384940e0,
                                       6.89767334985100004550e-1,
                                       1.48103976427480074590e-1,
                                       1.51986665636164571966e-2,
                                       5.47593808499534494600e-4,
                                       1.05075007164441684324e-9};
    r = r - 1.6;
    magnitude = Polynomial7(kNumerator, r) / Polynomial7(kDenominator, r);
  } else {
    constexpr double kNumerator[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                     2.71155556874348757815e-5, 2.01033439929228813265e-7};
    constexpr double kDenominator[] = {1.0,
                                       5.99832206555887937690e-1,
                                       1.36929880922735805310e-1,
                                       1.48753612908506148525e-2,
                                       7.86869131145613259100e-4,
                                       1.84631831751005468180e-5,
                                       1.42151175831644588870e-7,
                                       2.04426310338993978564e-15};
    r = r - 5.0;
    magnitude = Polynomial7(kNumerator, r) / Polynomial7(kDenominator, r);
  }
  return q < 0 ? -magnitude : magnitude;
}

// A normal distribution between two ends that FillInitialValues draws from: the constants of all elements.
struct TruncatedNormal {
  float mean;
  float standard_deviation;
  float low;
  float high;
  // True if most of the interval lies above the mean. Then everything is mirrored: probabilities are small numbers,
  // which doubles represent more precisely than numbers just below 1.
  bool mirrored;
  // Probabilities below each end of the (mirrored) interval, under the standard normal.
  double low_probability;
  double high_probability;
};

// Returns one value: the inverse distribution function of a probability between those two. A value that rounds beyond
// an end is the end.
PARAMSHARD_HOST_DEVICE float TruncatedNormalValue(PhiloxBlock words, const TruncatedNormal& normal) {
  const double unit = UnitDouble(words.word[0], words.word[1]);
  const double probability = normal.low_probability + (normal.high_probability - normal.low_probability) * unit;
  const double nearer = probability < 0.5 ? probability : 1.0 - probability;
  const double z = InverseNormal(probability - 0.5, nearer < 0x1p-1022 ? 0x1p-1022 : nearer);
  const double scaled = static_cast<double>(normal.standard_deviation) * (normal.mirrored ? -z : z);
  const float value = static_cast<float>(static_cast<double>(normal.mean) + scaled);
  if (value < normal.low) return normal.low;
  return value > normal.high ? normal.high : value;
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_MATH_H_
