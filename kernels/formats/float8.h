// The FP8 element types E4M3 and E5M2 (OCP 8-bit Floating Point Specification, revision 1.0).
//
// Casts round to nearest even and saturate, infinities too. A NaN of any sign becomes 0x7f. Zero keeps its sign.

#ifndef PARAMSHARD_KERNELS_FORMATS_FLOAT8_H_
#define PARAMSHARD_KERNELS_FORMATS_FLOAT8_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"
#include "kernels/formats/small_float.h"

namespace paramshard {

constexpr uint32_t kFloat8Nan = 0x7f;

// Cast to either type; `Bits` is the type's SmallFloat.
template <typename Bits>
PARAMSHARD_HOST_DEVICE uint8_t EncodeFloat8(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & kFloatMagnitudeMask;
  const uint32_t code = (bits & kFloatSignBit) | Bits::RoundMagnitude(magnitude);
  return static_cast<uint8_t>((magnitude > kFloatInfinityBits ? kFloat8Nan << 24 : code) >> 24);
}

// 4 exponent bits, 3 mantissa bits, no infinity.
struct E4M3 {
  using Bits = SmallFloat<3, 7, 0x43e00000u>;
  static constexpr float kMax = 448.0f;

  PARAMSHARD_HOST_DEVICE static uint8_t Encode(float value) { return EncodeFloat8<Bits>(value); }

  PARAMSHARD_HOST_DEVICE static float Decode(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t bits = ((code & 0x80u) << 24) | Bits::MagnitudeBits(magnitude);
    return FloatFromBits(magnitude == 0x7fu ? kFloatNanBits : bits);
  }
};

// 5 exponent bits, 2 mantissa bits. Infinities are decoded and never encoded.
struct E5M2 {
  using Bits = SmallFloat<2, 15, 0x47600000u>;
  static constexpr float kMax = 57344.0f;

  PARAMSHARD_HOST_DEVICE static uint8_t Encode(float value) { return EncodeFloat8<Bits>(value); }

  PARAMSHARD_HOST_DEVICE static float Decode(uint8_t code) {
    const uint32_t sign = (code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t finite = sign | Bits::MagnitudeBits(magnitude);
    const uint32_t special = magnitude == 0x7cu ? (sign | kFloatInfinityBits) : kFloatNanBits;
    return FloatFromBits(magnitude >= 0x7cu ? special : finite);
  }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FLOAT8_H_
