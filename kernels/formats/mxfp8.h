// MXFP8: E8M0 scales of 1 x 32 blocks in the row-wise plane, of 32 x 1 blocks in the column-wise plane.
//
// Internal to kernels/. OCP Microscaling Formats with TransformerEngine's rounding of the scale; edge blocks of any
// size.

#ifndef PARAMSHARD_KERNELS_FORMATS_MXFP8_H_
#define PARAMSHARD_KERNELS_FORMATS_MXFP8_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/tile.h"

namespace paramshard {

constexpr int64_t kMxBlockSize = 32;
constexpr int64_t kMxTileCols = 32 * kMxBlockSize;

// Encodes a tile of at most kMxBlockSize rows and kMxTileCols columns. A plane whose data is null is left out.
void EncodeMxfp8Tile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                     MutablePlane row_wise, MutablePlane column_wise);

void DecodeMxfp8(const Encoding& encoding, Plane plane, ConstPlane encoded, MatrixShape shape, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_MXFP8_H_
