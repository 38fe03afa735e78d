// float16: IEEE-754 binary16.
//
// The cast rounds to nearest even; values that round past the largest finite value become infinities, as in IEEE-754. A
// NaN of any sign becomes 0x7fff. Zero keeps its sign.

#ifndef PARAMSHARD_KERNELS_FORMATS_FLOAT16_H_
#define PARAMSHARD_KERNELS_FORMATS_FLOAT16_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"

namespace paramshard {

constexpr uint32_t kFloat16Nan = 0x7fff;
constexpr uint32_t kFloat16Infinity = 0x7c00;
constexpr float kFloat16Max = 65504.0f;

// Returns the code, without its sign, of the float32 whose magnitude has these bits (not a NaN). Values beyond the
// range give infinity's code.
PARAMSHARD_HOST_DEVICE uint32_t RoundFloat16Magnitude(uint32_t magnitude) {
  constexpr uint32_t kDroppedBits = kFloatMantissaBits - 10;
  constexpr uint32_t kMinNormalBits = 0x38800000u;  // 2^-14
  constexpr uint32_t kTwoTo16Bits = 0x47800000u;    // where infinity would be, were it one more number
  const uint32_t clamped = magnitude > kTwoTo16Bits ? kTwoTo16Bits : magnitude;
  // The addition of a power of two rounds, and leaves the significand in the low bits, as in
  // SmallFloat::RoundMagnitude().
  const uint32_t exponent = clamped & kFloatInfinityBits;
  const uint32_t power = exponent > kMinNormalBits ? exponent : kMinNormalBits;
  const uint32_t rounder = power + (kDroppedBits << kFloatMantissaBits);
  const uint32_t significand = FloatBits(FloatFromBits(clamped) + FloatFromBits(rounder)) - rounder;
  return significand + ((power - kMinNormalBits) >> kDroppedBits);
}

PARAMSHARD_HOST_DEVICE uint16_t EncodeFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & kFloatMagnitudeMask;
  const uint32_t code = ((bits & kFloatSignBit) >> 16) | RoundFloat16Magnitude(magnitude);
  return static_cast<uint16_t>(magnitude > kFloatInfinityBits ? kFloat16Nan : code);
}

// The same, but values beyond the range, infinities included, become +-65504.
PARAMSHARD_HOST_DEVICE uint16_t EncodeFloat16Saturating(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & kFloatMagnitudeMask;
  const uint32_t rounded = RoundFloat16Magnitude(magnitude);
  const uint32_t finite = rounded < kFloat16Infinity ? rounded : kFloat16Infinity - 1;
  const uint32_t code = ((bits & kFloatSignBit) >> 16) | finite;
  return static_cast<uint16_t>(magnitude > kFloatInfinityBits ? kFloat16Nan : code);
}

// A NaN keeps its sign and payload.
PARAMSHARD_HOST_DEVICE float DecodeFloat16(uint16_t code) {
  const uint32_t sign = (code & 0x8000u) << 16;
  const uint32_t magnitude = code & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << kFloatMantissaBits);
  const uint32_t subnormal = FloatBits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return FloatFromBits(sign | (magnitude >= kFloat16Infinity ? shifted | kFloatInfinityBits : finite));
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FLOAT16_H_
