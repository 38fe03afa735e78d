// The casts of bfloat16.h and float8.h by the GPU's instructions, several elements at a time.
//
// Internal to kernels/, for CUDA sources. The same codes as the formulas for every float32: round to nearest even, FP8
// saturates, NaN becomes 0x7fff or 0x7f.

#ifndef PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_

#include <cstdint>

#include "kernels/formats/float8.h"

namespace paramshard::gpu {

// The first value is in the low half.
__device__ __forceinline__ uint32_t EncodeBFloat16Pair(float first, float second) {
  uint32_t codes;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
  return codes;
}

template <typename Element>
__device__ __forceinline__ uint16_t EncodeFloat8Pair(float first, float second);

template <>
__device__ __forceinline__ uint16_t EncodeFloat8Pair<E4M3>(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}

template <>
__device__ __forceinline__ uint16_t EncodeFloat8Pair<E5M2>(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}

// The codes of four values, the first one in the low byte.
template <typename Element>
__device__ __forceinline__ uint32_t EncodeFloat8Quad(float a, float b, float c, float d) {
  return uint32_t{EncodeFloat8Pair<Element>(c, d)} << 16 | EncodeFloat8Pair<Element>(a, b);
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_
