// A float32 master as a bfloat16 weight and 16 bits more.
//
// The weight is the master's upper half, rounded half away from zero, so weights are a BF16 plane; the remainder is the
// lower half as a signed number. Joining restores every bit. The split differs from EncodeBFloat16() in ties, which
// EncodeBFloat16() rounds to even, and in NaN: 0x7fc00000 becomes 0x7fc0. TransformerEngine's FusedStep does the same
// (store_param_remainders).

#ifndef PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_H_
#define PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/host_device.h"

namespace paramshard {

struct SplitMaster {
  uint16_t weight;
  int16_t remainder;
};

// weight = bits >> 16, remainder = the low 16 bits as int16; a negative remainder adds 1 to the weight.
PARAMSHARD_HOST_DEVICE SplitMaster Split(float master) {
  const uint32_t bits = FloatBits(master);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<int16_t>(static_cast<uint16_t>(bits))};
}

// A negative remainder takes 1 from the weight, as its sign bits do in the sum.
PARAMSHARD_HOST_DEVICE float Join(SplitMaster split) {
  return FloatFromBits((uint32_t{split.weight} << 16) + static_cast<uint32_t>(int32_t{split.remainder}));
}

// The same for `count` elements. Weights are BF16 plane data, of any alignment.
void SplitMasters(const float* masters, int64_t count, uint8_t* weights, int16_t* remainders);
void JoinMasters(const uint8_t* weights, const int16_t* remainders, int64_t count, float* masters);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MASTER_REMAINDER_H_
