// The casts of bfloat16.h, float16.h, float8.h and float4.h by the GPU's instructions, several elements at a time.
//
// Internal to kernels/, for CUDA sources. The same codes as the formulas for every float32: round to nearest even, FP8
// saturates, NaN becomes 0x7fff or 0x7f.

#ifndef PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/formats/float8.h"

namespace paramshard::gpu {

// The first value is in the low half.
__device__ __forceinline__ uint32_t EncodeBFloat16Pair(float first, float second) {
  uint32_t codes;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
  return codes;
}

// Values beyond the range become infinities.
__device__ __forceinline__ uint32_t EncodeFloat16Pair(float first, float second) {
  uint32_t codes;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
  return codes;
}

// Values beyond the range become +-65504.
__device__ __forceinline__ uint32_t EncodeFloat16PairSaturating(float first, float second) {
  uint32_t codes;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(second), "f"(first));
  return codes;
}

// The values of four E4M3 codes, the first one in the low byte. Of a NaN, some NaN.
__device__ __forceinline__ void DecodeE4M3Quad(uint32_t codes, float (&values)[4]) {
  asm("{.reg .b16 low, high, a, b, c, d;\n"
      ".reg .b32 first, second;\n"
      "mov.b32 {low, high}, %4;\n"
      "cvt.rn.f16x2.e4m3x2 first, low;\n"
      "cvt.rn.f16x2.e4m3x2 second, high;\n"
      "mov.b32 {a, b}, first;\n"
      "mov.b32 {c, d}, second;\n"
      "cvt.f32.f16 %0, a;\n"
      "cvt.f32.f16 %1, b;\n"
      "cvt.f32.f16 %2, c;\n"
      "cvt.f32.f16 %3, d;}"
      : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
      : "r"(codes));
}

// The value of one E4M3 code. Of a NaN, some NaN.
__device__ __forceinline__ float DecodeE4M3Code(uint32_t code) {
  float values[4];
  DecodeE4M3Quad(code, values);
  return values[0];
}

// Returns the value of an E8M0 code (DecodeE8M0() of scale_math.h): the code is a float32's exponent, except that 0 is
// the subnormal 2^-127, and infinity's exponent is NaN, computed as infinity times zero.
__device__ __forceinline__ float DecodeE8M0Code(uint32_t code) {
  const float value = FloatFromBits(max(code << kFloatMantissaBits, 0x00400000u));
  return fmaf(value, 0.0f, value);
}

// The values of two float16 codes, the first one in the low half. Of a NaN, some NaN.
__device__ __forceinline__ void DecodeFloat16Pair(uint32_t codes, float& first, float& second) {
  asm("{.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;}"
      : "=f"(first), "=f"(second)
      : "r"(codes));
}

// The values of four E5M2 codes, the first one in the low byte: each is the upper byte of the float16 of its value. Of
// a NaN, some NaN.
__device__ __forceinline__ void DecodeE5M2Quad(uint32_t codes, float (&values)[4]) {
  DecodeFloat16Pair(__byte_perm(codes, 0, 0x1404), values[0], values[1]);
  DecodeFloat16Pair(__byte_perm(codes, 0, 0x3424), values[2], values[3]);
}

// Two float16 products. The callers' products are exact.
__device__ __forceinline__ uint32_t MultiplyFloat16Pairs(uint32_t a, uint32_t b) {
  uint32_t products;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  return products;
}

// The values of eight E2M1 codes, the first one in the low four bits. The exponent and the mantissa of a code, shifted
// to where float16 has its own, are its value times 2^-14, subnormal or not.
__device__ __forceinline__ void DecodeE2M1Octet(uint32_t codes, float (&values)[8]) {
  constexpr uint32_t kTwoTo14 = 0x74007400u;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t pair = codes << (12 - 4 * j);  // codes j and j + 4 in the uppermost bits of both halves
    const uint32_t scaled_down = (pair & 0x80008000u) | (pair >> 3 & 0x0e000e00u);
    DecodeFloat16Pair(MultiplyFloat16Pairs(scaled_down, kTwoTo14), values[j], values[j + 4]);
  }
}

// The codes of four values, the first one in the low byte.
template <typename Element>
__device__ __forceinline__ uint32_t EncodeFloat8Quad(float a, float b, float c, float d);

template <>
__device__ __forceinline__ uint32_t EncodeFloat8Quad<E4M3>(float a, float b, float c, float d) {
  uint32_t codes;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
}

template <>
__device__ __forceinline__ uint32_t EncodeFloat8Quad<E5M2>(float a, float b, float c, float d) {
  uint32_t codes;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_PACKED_CASTS_CUDA_H_
