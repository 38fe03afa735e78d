// NVFP4_2D: E2M1 elements, two to a byte; E4M3 scales of 16 x 16 blocks, and one float32 amax for the tensor.
//
// Internal to kernels/. TransformerEngine's NVFP4 recipe for weights, with edge blocks of any size and rows of any
// length: an odd row's last byte has 0 in its upper half.

#ifndef PARAMSHARD_KERNELS_FORMATS_NVFP4_H_
#define PARAMSHARD_KERNELS_FORMATS_NVFP4_H_

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/tile.h"

namespace paramshard {

constexpr int64_t kNvfp4BlockSize = 16;
constexpr int64_t kNvfp4TileCols = 64 * kNvfp4BlockSize;

// Encodes a tile of at most kNvfp4BlockSize rows and kNvfp4TileCols columns, given the amax of the whole tensor.
// Requires plane.data; plane.amax is left alone.
void EncodeNvfp4Tile(const float* matrix, MatrixShape shape, const Tile& tile, float tensor_amax, MutablePlane plane);

void DecodeNvfp4(ConstPlane plane, MatrixShape shape, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_NVFP4_H_
