// Sizes of planes, data and scales together.
#ifndef PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_
#define PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "kernels/formats/format.h"

namespace paramshard {

// Returns the bytes of data, scales and amax of all planes of the encoding, for a matrix or an extent.
inline int64_t AllPlaneBytes(const Encoding& encoding, int64_t rows, int64_t columns) {
  const int64_t data = DataBytes(encoding, rows, columns);
  const int64_t row_wise = data + ScaleBytes(encoding, Plane::kRowWise, rows, columns) + AmaxBytes(encoding.format);
  if (!HasColumnPlane(encoding.format)) return row_wise;
  return row_wise + data + ScaleBytes(encoding, Plane::kColumnWise, rows, columns);
}

// Returns true if a parameter lives whole on one rank.
inline bool IsSmall(const ParameterSpec& spec, int64_t small_parameter_bytes) {
  return AllPlaneBytes(EncodingOf(spec.encoding), spec.rows(), spec.columns()) < small_parameter_bytes;
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_
