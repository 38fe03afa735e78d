#include "kernels/formats/fp8_tensor.h"

#include <cstring>

#include "kernels/base/simd_clones.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/formats/window.h"

namespace paramshard {

float Fp8TensorScale(const Encoding& encoding, const TensorScaling& scaling) {
  if (encoding.format == Format::kFP8TensorDelayed) return scaling.scale;
  const float fp8_max = encoding.element == ElementType::kE4M3 ? E4M3::kMax : E5M2::kMax;
  return ComputeScale(scaling.amax, fp8_max, encoding.power_of_two_scales);
}

PARAMSHARD_SIMD_CLONES
void EncodeFp8Tensor(ElementType element, const float* source, int64_t count, float scale, uint8_t* data) {
  if (element == ElementType::kE4M3) {
    EncodeScaled<E4M3>(source, count, scale, data);
  } else {
    EncodeScaled<E5M2>(source, count, scale, data);
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeFp8Tensor(ElementType element, ConstPlane plane, int64_t count, float* out) {
  if (count == 0) return;
  float scale_inv;
  memcpy(&scale_inv, plane.scales, sizeof(scale_inv));
  if (element == ElementType::kE4M3) {
    DecodeScaled<E4M3>(plane.data, count, scale_inv, out);
  } else {
    DecodeScaled<E5M2>(plane.data, count, scale_inv, out);
  }
}

}  // namespace paramshard
