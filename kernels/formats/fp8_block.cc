#include "kernels/formats/fp8_block.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/formats/window.h"

namespace paramshard {
namespace {

constexpr int64_t kTileBlocks = kFp8BlockTileCols / kFp8BlockSize;

int64_t BlocksIn(int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; }

int64_t ScaleIndex(MatrixShape shape, int64_t row, int64_t col) {
  return row / kFp8BlockSize * BlocksIn(shape.cols) + col / kFp8BlockSize;
}

// The amax of every block of a tile, as bits. Whole rows are read one after the other, as memory likes it.
PARAMSHARD_ALWAYS_INLINE void ComputeAmax(const Window& tile, uint32_t* amax) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; col += kFp8BlockSize) {
      const int64_t count = std::min(kFp8BlockSize, tile.cols - col);
      if (row + 1 < tile.rows) Prefetch(tile.Row(row + 1) + col, count);
      amax[col / kFp8BlockSize] = std::max(amax[col / kFp8BlockSize], LargestAmaxBits(tile.Row(row) + col, count));
    }
  }
}

// Stores the scale_inv of every block, and sets the factor of its elements.
PARAMSHARD_ALWAYS_INLINE void ComputeScales(const uint32_t* amax, int64_t count, float fp8_max, bool power_of_two,
                                            uint8_t* scales, float* multipliers) {
  for (int64_t i = 0; i < count; ++i) {
    multipliers[i] = ComputeScale(FloatFromBits(amax[i]), fp8_max, power_of_two);
    const float scale_inv = 1.0f / multipliers[i];
    memcpy(scales + i * sizeof(scale_inv), &scale_inv, sizeof(scale_inv));
  }
}

// `data` and `scales` are where the tile's begin; rows of data are as far apart as the tile's.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeBlocks(const Window& tile, bool power_of_two, uint8_t* data, uint8_t* scales) {
  uint32_t amax[kTileBlocks] = {};
  float multipliers[kTileBlocks];
  ComputeAmax(tile, amax);
  ComputeScales(amax, BlocksIn(tile.cols), Element::kMax, power_of_two, scales, multipliers);
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; col += kFp8BlockSize) {
      EncodeScaled<Element>(tile.Row(row) + col, std::min(kFp8BlockSize, tile.cols - col),
                            multipliers[col / kFp8BlockSize], data + row * tile.stride + col);
    }
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeRow(const uint8_t* data, const uint8_t* scales, int64_t cols, float* out) {
  for (int64_t col = 0; col < cols; col += kFp8BlockSize) {
    float scale_inv;
    memcpy(&scale_inv, scales + col / kFp8BlockSize * sizeof(scale_inv), sizeof(scale_inv));
    DecodeScaled<Element>(data + col, std::min(kFp8BlockSize, cols - col), scale_inv, out + col);
  }
}

}  // namespace

PARAMSHARD_SIMD_CLONES
void EncodeFp8BlockTile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                        MutablePlane plane) {
  const int64_t first = tile.row * shape.cols + tile.col;
  const Window window = {matrix + first, shape.cols, tile.rows, tile.cols};
  uint8_t* scales = plane.scales + ScaleIndex(shape, tile.row, tile.col) * sizeof(float);
  if (encoding.element == ElementType::kE4M3) {
    EncodeBlocks<E4M3>(window, encoding.power_of_two_scales, plane.data + first, scales);
  } else {
    EncodeBlocks<E5M2>(window, encoding.power_of_two_scales, plane.data + first, scales);
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeFp8Block(const Encoding& encoding, ConstPlane plane, MatrixShape shape, float* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint8_t* data = plane.data + row * shape.cols;
    const uint8_t* scales = plane.scales + ScaleIndex(shape, row, 0) * sizeof(float);
    if (encoding.element == ElementType::kE4M3) {
      DecodeRow<E4M3>(data, scales, shape.cols, out + row * shape.cols);
    } else {
      DecodeRow<E5M2>(data, scales, shape.cols, out + row * shape.cols);
    }
  }
}

}  // namespace paramshard
