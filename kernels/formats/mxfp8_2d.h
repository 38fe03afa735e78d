// MXFP8_2D: E8M0 scales of 32 x 32 blocks, which serve rows and columns alike.
//
// Internal to kernels/. The elements and scales of MXFP8 (mxfp8.h) with one amax per block; edge blocks of any size.

#ifndef PARAMSHARD_KERNELS_FORMATS_MXFP8_2D_H_
#define PARAMSHARD_KERNELS_FORMATS_MXFP8_2D_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/tile.h"

namespace paramshard {

constexpr int64_t kMx2dBlockSize = 32;
constexpr int64_t kMx2dTileCols = 32 * kMx2dBlockSize;

// Encodes a tile of at most kMx2dBlockSize rows and kMx2dTileCols columns. Requires plane.data.
void EncodeMxfp8_2dTile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                        MutablePlane plane);

void DecodeMxfp8_2d(const Encoding& encoding, ConstPlane plane, MatrixShape shape, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_MXFP8_2D_H_
