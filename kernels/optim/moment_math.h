// The scale of a block of moments and the value of an element, for host and device.
//
// See moment.h. `kMax` is the largest value of the stored type: E4M3::kMax, kFloat16Max.

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_MATH_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_MATH_H_

#include <cmath>
#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float8.h"

namespace paramshard {

// The types that are stored in blocks.
struct Float16Moment {
  using Stored = uint16_t;
  static constexpr float kMax = kFloat16Max;
  PARAMSHARD_HOST_DEVICE static Stored Encode(float value) { return EncodeFloat16Saturating(value); }
  PARAMSHARD_HOST_DEVICE static float Decode(Stored code) { return DecodeFloat16(code); }
};

struct Float8Moment {
  using Stored = uint8_t;
  static constexpr float kMax = E4M3::kMax;
  PARAMSHARD_HOST_DEVICE static Stored Encode(float value) { return E4M3::Encode(value); }
  PARAMSHARD_HOST_DEVICE static float Decode(Stored code) { return E4M3::Decode(code); }
};

// Returns the scale_inv of a block, from the amax (not a NaN) of its values before scaling; 1 if the quotient is 0 or
// infinite.
PARAMSHARD_HOST_DEVICE float MomentScaleInv(float amax, float max) {
  const float quotient = amax / max;
  const uint32_t bits = FloatBits(quotient);
  return bits == 0 || bits == kFloatInfinityBits ? 1.0f : quotient;
}

// Converts a moment to its stored value before scaling, and back: exp_avg_sq is stored as its square root.
template <bool kRoot>
PARAMSHARD_HOST_DEVICE float MomentToStore(float value) {
  return kRoot ? sqrtf(value) : value;
}

template <bool kRoot>
PARAMSHARD_HOST_DEVICE float MomentFromStored(float value) {
  return kRoot ? value * value : value;
}

// Returns the code of a value. Divides, because scale_inv may be too small to be inverted.
template <typename Moment>
PARAMSHARD_HOST_DEVICE typename Moment::Stored EncodeBlockMoment(float to_store, float scale_inv) {
  return Moment::Encode(to_store / scale_inv);
}

// The moment that a code stands for.
template <typename Moment, bool kRoot>
PARAMSHARD_HOST_DEVICE float DecodeBlockMoment(typename Moment::Stored code, float scale_inv) {
  return MomentFromStored<kRoot>(Moment::Decode(code) * scale_inv);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_MATH_H_
