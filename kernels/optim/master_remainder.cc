#include "kernels/optim/master_remainder.h"

#include <cstring>

#include "kernels/base/simd_clones.h"

namespace paramshard {

PARAMSHARD_SIMD_CLONES
void SplitMasters(const float* __restrict masters, int64_t count, uint8_t* __restrict weights,
                  int16_t* __restrict remainders) {
  for (int64_t i = 0; i < count; ++i) {
    const SplitMaster split = Split(masters[i]);
    memcpy(weights + i * sizeof(split.weight), &split.weight, sizeof(split.weight));
    remainders[i] = split.remainder;
  }
}

PARAMSHARD_SIMD_CLONES
void JoinMasters(const uint8_t* __restrict weights, const int16_t* __restrict remainders, int64_t count,
                 float* __restrict masters) {
  for (int64_t i = 0; i < count; ++i) {
    SplitMaster split;
    memcpy(&split.weight, weights + i * sizeof(split.weight), sizeof(split.weight));
    split.remainder = remainders[i];
    masters[i] = Join(split);
  }
}

}  // namespace paramshard
