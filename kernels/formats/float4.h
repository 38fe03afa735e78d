// The FP4 element type E2M1 (OCP Microscaling Formats specification, version 1.0): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and
// negatives.
//
// The cast rounds to nearest even and saturates. NaN becomes +6, as the type has no NaN. Zero keeps its sign.

#ifndef PARAMSHARD_KERNELS_FORMATS_FLOAT4_H_
#define PARAMSHARD_KERNELS_FORMATS_FLOAT4_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/formats/small_float.h"

namespace paramshard {

struct E2M1 {
  using Bits = SmallFloat<1, 1, 0x40c00000u>;
  static constexpr float kMax = 6.0f;

  // The code in the low four bits.
  PARAMSHARD_HOST_DEVICE static uint8_t Encode(float value) {
    const uint32_t bits = FloatBits(value);
    const uint32_t magnitude = bits & kFloatMagnitudeMask;
    const uint32_t code = ((bits & kFloatSignBit) >> 4) | Bits::RoundMagnitude(magnitude);
    return static_cast<uint8_t>((magnitude > kFloatInfinityBits ? 0x7u << 24 : code) >> 24);
  }

  PARAMSHARD_HOST_DEVICE static float Decode(uint8_t code) {
    return FloatFromBits(((code & 0x8u) << 28) | Bits::MagnitudeBits(code & 0x7u));
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FLOAT4_H_
