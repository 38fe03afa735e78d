// bfloat16: the upper half of a float32.
//
// The cast rounds to nearest even; values that round past the largest finite value become infinities, as in IEEE-754. A
// NaN of any sign becomes 0x7fff.

#ifndef PARAMSHARD_KERNELS_FORMATS_BFLOAT16_H_
#define PARAMSHARD_KERNELS_FORMATS_BFLOAT16_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"

namespace paramshard {

constexpr uint32_t kBFloat16Nan = 0x7fff;

PARAMSHARD_HOST_DEVICE uint16_t EncodeBFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>((value == value ? rounded : kBFloat16Nan << 16) >> 16);
}

// A NaN keeps its sign and payload.
PARAMSHARD_HOST_DEVICE float DecodeBFloat16(uint16_t code) { return FloatFromBits(uint32_t{code} << 16); }

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_BFLOAT16_H_
