// float32 values and their IEEE-754 bits.

#ifndef PARAMSHARD_KERNELS_BASE_FLOAT_BITS_H_
#define PARAMSHARD_KERNELS_BASE_FLOAT_BITS_H_

#include <cstdint>
#include <cstring>

#include "kernels/base/host_device.h"

namespace paramshard {

constexpr uint32_t kFloatSignBit = 0x80000000u;
constexpr uint32_t kFloatMagnitudeMask = 0x7fffffffu;
constexpr uint32_t kFloatInfinityBits = 0x7f800000u;
constexpr uint32_t kFloatMaxBits = 0x7f7fffffu;
constexpr uint32_t kFloatMinNormalBits = 0x00800000u;
// The one NaN that is ever stored.
constexpr uint32_t kFloatNanBits = 0x7fc00000u;
constexpr int kFloatMantissaBits = 23;
constexpr int kFloatExponentBias = 127;

PARAMSHARD_HOST_DEVICE uint32_t FloatBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

PARAMSHARD_HOST_DEVICE float FloatFromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The value, with every NaN as 0x7fc00000: which NaN an operation makes differs between machines.
PARAMSHARD_HOST_DEVICE float CanonicalNan(float value) { return value == value ? value : FloatFromBits(kFloatNanBits); }

// |value| as bits, which compare like the magnitudes; 0 for a NaN. The amax of a block is the largest of these.
PARAMSHARD_HOST_DEVICE uint32_t AmaxBits(float value) {
  const uint32_t magnitude = FloatBits(value) & kFloatMagnitudeMask;
  // A mask instead of a conditional, with which GCC does not vectorize the search for the largest.
  return magnitude & (0u - static_cast<uint32_t>(magnitude <= kFloatInfinityBits));
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_BASE_FLOAT_BITS_H_
