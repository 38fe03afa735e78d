// Sizes of planes, with their scales and amaxes.
#ifndef PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_
#define PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_

#include <cstdint>

#include "common/model/model_spec.h"
#include "kernels/base/align.h"
#include "kernels/formats/format.h"

namespace paramshard {

// Returns the bytes of data, scales and amax of all planes of the encoding, for a matrix or an extent.
inline int64_t AllPlaneBytes(const Encoding& encoding, int64_t rows, int64_t columns) {
  const int64_t data = DataBytes(encoding, rows, columns);
  const int64_t row_wise = data + ScaleBytes(encoding, Plane::kRowWise, rows, columns) + AmaxBytes(encoding.format);
  if (!HasColumnPlane(encoding.format)) return row_wise;
  return row_wise + data + ScaleBytes(encoding, Plane::kColumnWise, rows, columns);
}

// Returns true for formats with one scale for the tensor: every extent has the same.
inline bool HasTensorScale(Format format) { return TraitsOf(format).row_wise_block.rows == kUnbounded; }

// A plane of an extent in one piece of memory: data, then scales at a multiple of 16 bytes, then the amax at a multiple of
// 4.
struct PackedPlane {
  int64_t data_bytes = 0;
  int64_t scales_begin = 0;
  int64_t scale_bytes = 0;
  int64_t amax_begin = 0;
  int64_t amax_bytes = 0;
  int64_t bytes = 0;
};

inline PackedPlane PackPlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t columns) {
  PackedPlane packed{.data_bytes = DataBytes(encoding, rows, columns),
                     .scale_bytes = ScaleBytes(encoding, plane, rows, columns),
                     .amax_bytes = AmaxBytes(encoding.format)};
  packed.scales_begin = packed.scale_bytes > 0 ? AlignUp(packed.data_bytes, 16) : packed.data_bytes;
  const int64_t scales_end = packed.scales_begin + packed.scale_bytes;
  packed.amax_begin = packed.amax_bytes > 0 ? AlignUp(scales_end, static_cast<int64_t>(sizeof(float))) : scales_end;
  packed.bytes = packed.amax_begin + packed.amax_bytes;
  return packed;
}

// Returns true if a parameter lives whole on one rank because it is small.
inline bool IsSmall(const ParameterSpec& spec, int64_t small_parameter_bytes) {
  return AllPlaneBytes(EncodingOf(spec.encoding), spec.rows(), spec.columns()) < small_parameter_bytes;
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_PLANE_BYTES_H_
