// Division by a number that is known beforehand, as a multiplication and a fused multiply-add.
//
// Internal to kernels/. After Brisebarre and Muller, "Correctly rounded multiplication by arbitrary precision
// constants".
//
// With high + low next to 1 / divisor, fma(x, high, x * low) differs from x / divisor by at most 2^-45 of it before its
// last rounding: `low` by three and a half places, 2^-47 each, and its product by half a place. It rounds like x /
// divisor unless the quotient lies that close to the middle between two floats. Let X and C in [2^23, 2^24) be the
// significands of dividend and divisor, and an odd M in [2^24, 2^25) the middle: then X * 2^k - M * C = d is a small
// number, and not zero because C has fewer than 25 bits. For each such d a congruence modulo C gives a few X: if these
// round correctly, all quotients do.

#ifndef PARAMSHARD_KERNELS_OPTIM_RECIPROCAL_PAIR_H_
#define PARAMSHARD_KERNELS_OPTIM_RECIPROCAL_PAIR_H_

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "kernels/base/float_bits.h"

namespace paramshard {

// A reciprocal in two parts.
struct ReciprocalPair {
  float high = 0.0f;
  float low = 0.0f;
};

// Returns the nearest pair, for a divisor that is known to divide exactly with it.
constexpr ReciprocalPair NearestReciprocalPair(float divisor) {
  const double wide = 1.0 / static_cast<double>(divisor);
  const auto high = static_cast<float>(wide);
  return {high, static_cast<float>(wide - static_cast<double>(high))};
}

namespace reciprocal_pair_internal {

// Largest distance of `low` from the nearest value.
constexpr int kMostPlaces = 3;

constexpr int64_t kLeastSignificand = int64_t{1} << 23;

inline int64_t SignificandOf(float value) { return static_cast<int64_t>((FloatBits(value) & 0x7fffffu) | 0x800000u); }

// 2^-exponent modulo `odd`: halving a number, or its sum with the modulus.
inline int64_t InversePowerOfTwo(int exponent, int64_t odd) {
  int64_t result = 1 % odd;
  for (int i = 0; i < exponent; ++i) result = (result % 2 == 0 ? result : result + odd) / 2;
  return result;
}

inline bool RoundsRightly(const ReciprocalPair& pair, float dividend, float divisor) {
  return std::fma(dividend, pair.high, dividend * pair.low) == dividend / divisor;
}

// Returns true if all quotients nearly in the middle of two floats round correctly, of dividends with significands in
// [first, last). `exponent` gives the quotient a significand of 25 bits.
inline bool MiddlesRoundRightly(const ReciprocalPair& pair, float divisor, int exponent, int64_t first, int64_t last) {
  // Largest |d|: 2^-45 of X * 2^exponent, and the error of the reciprocal in double.
  constexpr int64_t kFarthest = 17;
  const int64_t significand = SignificandOf(divisor);
  const float scale = static_cast<float>(significand) / divisor;  // a power of two
  int twos = 0;
  while ((significand >> twos & 1) == 0) ++twos;
  const int64_t odd = significand >> twos;
  const int64_t inverse = InversePowerOfTwo(exponent - twos, odd);
  for (int64_t d = -kFarthest; d <= kFarthest; ++d) {
    if (d == 0 || d % (int64_t{1} << twos) != 0) continue;
    int64_t x = (d >> twos) % odd * inverse % odd;
    if (x < 0) x += odd;
    x += (first - x + odd - 1) / odd * odd;
    for (; x < last; x += odd) {
      if (!RoundsRightly(pair, static_cast<float>(x) / scale, divisor)) return false;
    }
  }
  return true;
}

}  // namespace reciprocal_pair_internal

// Returns true if fma(x, high, x * low) is x / divisor, rounded once, for every x where no result is subnormal or
// overflows. `divisor` is positive and normal, the pair its reciprocal up to three places of `low`.
inline bool DividesExactly(const ReciprocalPair& pair, float divisor) {
  using namespace reciprocal_pair_internal;
  const int64_t significand = SignificandOf(divisor);
  // Quotients of significands that are at least 1, then quotients below 1.
  return MiddlesRoundRightly(pair, divisor, 24, significand, 2 * kLeastSignificand) &&
         MiddlesRoundRightly(pair, divisor, 25, kLeastSignificand, significand);
}

// Finds a pair that divides exactly. Returns false if there is none: for about one divisor in a thousand, two dividends
// need different pairs.
inline bool FindReciprocalPair(float divisor, ReciprocalPair& pair) {
  using namespace reciprocal_pair_internal;
  pair = NearestReciprocalPair(divisor);
  float above = pair.low;
  float below = pair.low;
  for (int places = 0; places <= kMostPlaces; ++places) {
    for (const float low : {above, below}) {
      pair.low = low;
      if (DividesExactly(pair, divisor)) return true;
    }
    above = std::nextafter(above, INFINITY);
    below = std::nextafter(below, -INFINITY);
  }
  return false;
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_RECIPROCAL_PAIR_H_
