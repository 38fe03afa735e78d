// FP8_BLOCK_128X128: one float32 scale_inv per 128 x 128 block.
//
// Internal to kernels/. TransformerEngine's block scaling, with edge blocks of any size.

#ifndef PARAMSHARD_KERNELS_FORMATS_FP8_BLOCK_H_
#define PARAMSHARD_KERNELS_FORMATS_FP8_BLOCK_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/tile.h"

namespace paramshard {

constexpr int64_t kFp8BlockSize = 128;
constexpr int64_t kFp8BlockTileCols = 16 * kFp8BlockSize;

// Encodes a tile of at most kFp8BlockSize rows and kFp8BlockTileCols columns. Requires plane.data.
void EncodeFp8BlockTile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                        MutablePlane plane);

void DecodeFp8Block(const Encoding& encoding, ConstPlane plane, MatrixShape shape, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FP8_BLOCK_H_
