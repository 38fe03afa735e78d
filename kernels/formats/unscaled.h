// The formats without scales, FP32, BF16 and FP16, as arrays of `count` elements.
//
// Internal to kernels/. Data may be of any alignment.

#ifndef PARAMSHARD_KERNELS_FORMATS_UNSCALED_H_
#define PARAMSHARD_KERNELS_FORMATS_UNSCALED_H_

#include <cstdint>

namespace paramshard {

void EncodeFloats(const float* source, int64_t count, uint8_t* data);
void DecodeFloats(const uint8_t* data, int64_t count, float* out);

void EncodeBFloat16s(const float* source, int64_t count, uint8_t* data);
void DecodeBFloat16s(const uint8_t* data, int64_t count, float* out);

void EncodeFloat16s(const float* source, int64_t count, uint8_t* data);
void DecodeFloat16s(const uint8_t* data, int64_t count, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_UNSCALED_H_
