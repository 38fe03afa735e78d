// FP8_TENSOR_CURRENT and FP8_TENSOR_DELAYED: one float32 scale_inv for the whole tensor.
//
// Internal to kernels/. TransformerEngine's current and delayed scaling. Data is an array of `count` elements.

#ifndef PARAMSHARD_KERNELS_FORMATS_FP8_TENSOR_H_
#define PARAMSHARD_KERNELS_FORMATS_FP8_TENSOR_H_

#include <cstdint>

#include "kernels/formats/codec.h"

namespace paramshard {

// Returns the factor that encoding multiplies elements by.
float Fp8TensorScale(const Encoding& encoding, const TensorScaling& scaling);

void EncodeFp8Tensor(ElementType element, const float* source, int64_t count, float scale, uint8_t* data);
void DecodeFp8Tensor(ElementType element, ConstPlane plane, int64_t count, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FP8_TENSOR_H_
