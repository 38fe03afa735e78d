// Rounding of float32 to a float of few bits: the common part of E4M3, E5M2 and E2M1.

#ifndef PARAMSHARD_KERNELS_FORMATS_SMALL_FLOAT_H_
#define PARAMSHARD_KERNELS_FORMATS_SMALL_FLOAT_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"

namespace paramshard {

// A binary float type of kMantissa explicit mantissa bits and the given exponent bias, with subnormals, whose largest
// finite value is the float32 of bits kMaxBits.
template <int kMantissa, int kBias, uint32_t kMaxBits>
struct SmallFloat {
  static constexpr int kDroppedBits = kFloatMantissaBits - kMantissa;
  static constexpr uint32_t kMinNormalBits = uint32_t{kFloatExponentBias + 1 - kBias} << kFloatMantissaBits;

  // Returns the code, without its sign, of the float32 whose magnitude has these bits: nearest, ties to even,
  // saturating. NaN gives the largest value; callers replace it. The code is in the uppermost byte, above zeros: a
  // vector loop keeps it as wide as its input and narrows it only at the end.
  PARAMSHARD_HOST_DEVICE static uint32_t RoundMagnitude(uint32_t magnitude) {
    const uint32_t clamped = magnitude > kMaxBits ? kMaxBits : magnitude;
    // The exponent of the result's lowest bit follows the value's exponent, down to the smallest normal exponent.
    const uint32_t exponent = clamped & kFloatInfinityBits;
    const uint32_t power = exponent > kMinNormalBits ? exponent : kMinNormalBits;
    // A power of two whose float32 ulp is that bit: the addition rounds, and leaves the significand in the low bits.
    const float rounder = FloatFromBits(power + (uint32_t{kDroppedBits} << kFloatMantissaBits));
    const uint32_t significand = FloatBits(FloatFromBits(clamped) + rounder) << 24;
    // A significand's leading bit counts one exponent, so subnormal and normal codes are the same sum.
    return significand + ((power - kMinNormalBits) << (24 - kDroppedBits));
  }

  // The bits of the float32 that a finite code without its sign stands for.
  PARAMSHARD_HOST_DEVICE static uint32_t MagnitudeBits(uint32_t code) {
    const uint32_t normal = (code << kDroppedBits) + (uint32_t{kFloatExponentBias - kBias} << kFloatMantissaBits);
    const uint32_t smallest = uint32_t{kFloatExponentBias + 1 - kBias - kMantissa} << kFloatMantissaBits;
    const uint32_t subnormal = FloatBits(static_cast<float>(static_cast<int32_t>(code)) * FloatFromBits(smallest));
    return code < (1u << kMantissa) ? subnormal : normal;
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_SMALL_FLOAT_H_
