// Encoding a float32 matrix into the planes of its format, and decoding them.
//
// The bytes are fixed by the formulas in float4.h, float8.h, float16.h, bfloat16.h and scale_math.h: the same on every
// machine and for any cut of the rows at multiples of GranuleRows(), given the scaling of the whole tensor.

#ifndef PARAMSHARD_KERNELS_FORMATS_CODEC_H_
#define PARAMSHARD_KERNELS_FORMATS_CODEC_H_

#include <cstdint>

#include "kernels/formats/format_id.h"

namespace paramshard {

// The memory of one plane: DataBytes() and ScaleBytes() large, of any alignment, owned by the caller.
struct MutablePlane {
  uint8_t* data = nullptr;
  uint8_t* scales = nullptr;
  uint8_t* amax = nullptr;  // NVFP4_2D only: AmaxBytes() large, float32
};

struct ConstPlane {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  const uint8_t* amax = nullptr;
};

// The part of a plane that begins at a row, a multiple of GranuleRows(), in a matrix with rows of `cols` elements.
MutablePlane PlaneAt(const Encoding& encoding, Plane which, MutablePlane plane, int64_t cols, int64_t row);

// Facts about the whole tensor that encoding some of its rows depends on.
struct TensorScaling {
  float amax = 0.0f;   // FP8_TENSOR_CURRENT, NVFP4_2D: over all rows of all ranks
  float scale = 1.0f;  // FP8_TENSOR_DELAYED: factor of elements
};

// Encodes `matrix` (rows x cols, row-major, contiguous; 0 rows are fine) into its row-wise and, where HasColumnPlane(),
// its column-wise plane. A plane whose data is null is left out; then its scales are not written either. Planes overlap
// neither each other nor the matrix. FP32 planes hold the matrix with every NaN as 0x7fc00000.
//
// Values of the whole tensor, the scale_inv of FP8_TENSOR_* and the amax of NVFP4_2D, are written for 0 rows too if
// their pointer is not null. In NVFP4_2D every row begins with a new byte: the upper half of an odd row's last byte is
// 0.
//
// Requires: CheckEncodable(encoding).ok().
void EncodePlanes(const Encoding& encoding, const float* matrix, int64_t rows, int64_t cols, MutablePlane row_wise,
                  MutablePlane column_wise, const TensorScaling& scaling = {});

// Returns the largest magnitude of `count` values. Ignores NaN; infinities count.
float Amax(const float* values, int64_t count);

// Decodes one plane into `out` (rows x cols float32, row-major, contiguous). Every NaN is 0x7fc00000.
//
// Requires: CheckEncodable(encoding).ok(), and HasColumnPlane(encoding.format) for Plane::kColumnWise.
void DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_CODEC_H_
