// The scale of a block, from its amax.

#ifndef PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_
#define PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"

namespace paramshard {

// The multiplier that maps `amax` to `fp8_max`, as in TransformerEngine's compute_scale_from_amax: 1 when amax is 0, infinite
// or NaN; FLT_MAX where the quotient overflows; rounded down to a power of two when asked. Elements are encoded as
// cast(x * scale) and decoded with 1 / scale.
PARAMSHARD_HOST_DEVICE float ComputeScale(float amax, float fp8_max, bool power_of_two) {
  const uint32_t amax_bits = FloatBits(amax);
  if (amax_bits == 0 || amax_bits >= kFloatInfinityBits) return 1.0f;
  uint32_t bits = FloatBits(fp8_max / amax);
  if (bits == kFloatInfinityBits) bits = kFloatMaxBits;
  if (power_of_two) bits &= kFloatInfinityBits;
  return FloatFromBits(bits);
}

// E8M0 (OCP Microscaling Formats): a byte E stands for 2^(E - 127), 255 for NaN.
constexpr uint32_t kE8M0Nan = 255;

// The smallest power of two that is not below `value` (>= 0 or NaN); 2^127 for anything larger.
PARAMSHARD_HOST_DEVICE uint8_t EncodeE8M0RoundUp(float value) {
  const uint32_t bits = FloatBits(value) & kFloatMagnitudeMask;
  const uint32_t exponent = bits >> kFloatMantissaBits;
  const uint32_t mantissa = bits & ((1u << kFloatMantissaBits) - 1);
  // E = 0 is 2^-127, the subnormal of mantissa 0x400000.
  const uint32_t exact = exponent == 0 ? 0x400000u : 0u;
  const uint32_t rounded = exponent + (mantissa > exact ? 1u : 0u);
  const uint32_t finite = rounded > 254u ? 254u : rounded;
  return static_cast<uint8_t>(bits > kFloatInfinityBits ? kE8M0Nan : finite);
}

PARAMSHARD_HOST_DEVICE float DecodeE8M0(uint8_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : uint32_t{code} << kFloatMantissaBits;
  return FloatFromBits(code == kE8M0Nan ? kFloatNanBits : bits);
}

// What elements are multiplied by: 1 / DecodeE8M0(code), which is exact, except that E = 0 gives 2^127.
PARAMSHARD_HOST_DEVICE float E8M0EncodeMultiplier(uint8_t code) {
  const uint32_t bits = code == 254 ? 0x00400000u : (254u - code) << kFloatMantissaBits;
  return FloatFromBits(code == kE8M0Nan ? kFloatNanBits : bits);
}

// The E8M0 scale of an MXFP8 block: amax / fp8_max rounded up, with the division as a multiplication by f32(1 / fp8_max).
PARAMSHARD_HOST_DEVICE uint8_t ComputeE8M0Scale(float amax, float fp8_max) {
  return EncodeE8M0RoundUp(amax * (1.0f / fp8_max));
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_
