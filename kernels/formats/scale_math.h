// The scale of a tensor or a block, from its amax.

#ifndef PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_
#define PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/formats/float8.h"

namespace paramshard {

// The multiplier that maps `amax` to `fp8_max`, as in TransformerEngine's compute_scale_from_amax: 1 when amax is 0,
// infinite or NaN; FLT_MAX where the quotient overflows; rounded down to a power of two when asked. Elements are
// encoded as cast(x * scale) and decoded with 1 / scale.
PARAMSHARD_HOST_DEVICE float ComputeScale(float amax, float fp8_max, bool power_of_two) {
  const uint32_t amax_bits = FloatBits(amax);
  if (amax_bits == 0 || amax_bits >= kFloatInfinityBits) return 1.0f;
  uint32_t bits = FloatBits(fp8_max / amax);
  if (bits == kFloatInfinityBits) bits = kFloatMaxBits;
  if (power_of_two) bits &= kFloatInfinityBits;
  return FloatFromBits(bits);
}

// The scale of delayed scaling: `scaled_max` (fp8_max * 2^-margin) over an amax of earlier steps; FLT_MAX where that
// overflows. An amax that is 0, infinite or NaN leaves the present scale. As in TransformerEngine's delayed scaling
// recipe.
PARAMSHARD_HOST_DEVICE float ComputeDelayedScale(float amax, float scaled_max, float present) {
  const uint32_t amax_bits = FloatBits(amax);
  if (amax_bits == 0 || amax_bits >= kFloatInfinityBits) return present;
  const uint32_t bits = FloatBits(scaled_max / amax);
  return FloatFromBits(bits == kFloatInfinityBits ? kFloatMaxBits : bits);
}

// E8M0 (OCP Microscaling Formats): a byte E stands for 2^(E - 127), 255 for NaN.
constexpr uint32_t kE8M0Nan = 255;

// The smallest power of two that is not below `value` (>= 0 or NaN); 2^127 for anything larger.
PARAMSHARD_HOST_DEVICE uint8_t EncodeE8M0RoundUp(float value) {
  const uint32_t bits = FloatBits(value) & kFloatMagnitudeMask;
  // Any bit of the mantissa carries into the exponent.
  const uint32_t exponent = (bits + ((1u << kFloatMantissaBits) - 1)) >> kFloatMantissaBits;
  const uint32_t finite = exponent > 254u ? 254u : exponent;
  // E = 0 is 2^-127, the subnormal of mantissa 0x400000.
  const uint32_t rounded = bits <= 0x400000u ? 0u : finite;
  return static_cast<uint8_t>(bits > kFloatInfinityBits ? kE8M0Nan : rounded);
}

PARAMSHARD_HOST_DEVICE float DecodeE8M0(uint8_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : uint32_t{code} << kFloatMantissaBits;
  return FloatFromBits(code == kE8M0Nan ? kFloatNanBits : bits);
}

// Returns the factor that elements are multiplied by: 1 / DecodeE8M0(code), which is exact, except that E = 0 gives
// 2^127.
PARAMSHARD_HOST_DEVICE float E8M0EncodeMultiplier(uint8_t code) {
  const uint32_t exponent = (254u - code) << kFloatMantissaBits;
  const uint32_t bits = exponent > 0x00400000u ? exponent : 0x00400000u;  // the subnormal 2^-127 for E = 254
  return FloatFromBits(code == kE8M0Nan ? kFloatNanBits : bits);
}

// The E8M0 scale of an MXFP8 block: amax / fp8_max rounded up, with the division as a multiplication by f32(1 /
// fp8_max).
PARAMSHARD_HOST_DEVICE uint8_t ComputeE8M0Scale(float amax, float fp8_max) {
  return EncodeE8M0RoundUp(amax * (1.0f / fp8_max));
}

// NVFP4 has two levels: one float32 scale S for the tensor, which maps its amax to 448 * 6, and an E4M3 scale for each
// block. As in TransformerEngine's NVFP4 recipe.
constexpr float kNvfp4TensorMax = 2688.0f;

// The smaller of a value >= 0 and FLT_MAX.
PARAMSHARD_HOST_DEVICE float CapAtFloatMax(float value) {
  const uint32_t bits = FloatBits(value);
  return FloatFromBits(bits == kFloatInfinityBits ? kFloatMaxBits : bits);
}

// S, from the amax of the whole tensor over all ranks (not a NaN); 1 when that is 0 or infinite.
PARAMSHARD_HOST_DEVICE float ComputeNvfp4TensorScale(float amax) {
  const float scale = CapAtFloatMax(kNvfp4TensorMax / amax);
  return amax == 0.0f || scale == 0.0f ? 1.0f : scale;
}

// The E4M3 code of a block's scale, from its amax (not a NaN) and S.
PARAMSHARD_HOST_DEVICE uint8_t ComputeNvfp4BlockScale(float block_amax, float tensor_scale) {
  return E4M3::Encode(CapAtFloatMax(block_amax * (tensor_scale * (1.0f / 6.0f))));
}

// Returns the factor that the elements of a block are multiplied by; FLT_MAX if the block's scale is 0.
PARAMSHARD_HOST_DEVICE float Nvfp4EncodeMultiplier(uint8_t block_scale, float tensor_scale) {
  return CapAtFloatMax(1.0f / (E4M3::Decode(block_scale) * (1.0f / tensor_scale)));
}

// Returns the amax that elements are decoded with. If S is FLT_MAX, because the quotient overflows, it is the amax
// whose quotient is FLT_MAX. A subnormal amax stays as it is: its elements decode to almost 0.
PARAMSHARD_HOST_DEVICE float Nvfp4DecodeAmax(float amax) {
  const uint32_t least = FloatBits(kNvfp4TensorMax / FloatFromBits(kFloatMaxBits));
  const uint32_t bits = FloatBits(amax);
  return FloatFromBits(bits >= kFloatMinNormalBits && bits < least ? least : bits);
}

// Decodes an E2M1 value of a block whose decoded scale is `block_scale`; `decode_amax` is Nvfp4DecodeAmax of the
// tensor's amax. The first product is exact.
PARAMSHARD_HOST_DEVICE float DecodeNvfp4(float value, float block_scale, float decode_amax) {
  return ((value * block_scale) * decode_amax) * (1.0f / kNvfp4TensorMax);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_SCALE_MATH_H_
