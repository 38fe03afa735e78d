#include "kernels/formats/unscaled.h"

#include <cstring>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"

namespace paramshard {

PARAMSHARD_SIMD_CLONES
void EncodeFloats(const float* __restrict source, int64_t count, uint8_t* __restrict data) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = CanonicalNan(source[i]);
    memcpy(data + i * sizeof(value), &value, sizeof(value));
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeFloats(const uint8_t* __restrict data, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    float value;
    memcpy(&value, data + i * sizeof(value), sizeof(value));
    out[i] = CanonicalNan(value);
  }
}

PARAMSHARD_SIMD_CLONES
void EncodeBFloat16s(const float* __restrict source, int64_t count, uint8_t* __restrict data) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t code = EncodeBFloat16(source[i]);
    memcpy(data + i * sizeof(code), &code, sizeof(code));
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeBFloat16s(const uint8_t* __restrict data, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t code;
    memcpy(&code, data + i * sizeof(code), sizeof(code));
    out[i] = CanonicalNan(DecodeBFloat16(code));
  }
}

PARAMSHARD_SIMD_CLONES
void EncodeFloat16s(const float* __restrict source, int64_t count, uint8_t* __restrict data) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t code = EncodeFloat16(source[i]);
    memcpy(data + i * sizeof(code), &code, sizeof(code));
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeFloat16s(const uint8_t* __restrict data, int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t code;
    memcpy(&code, data + i * sizeof(code), sizeof(code));
    out[i] = CanonicalNan(DecodeFloat16(code));
  }
}

}  // namespace paramshard
