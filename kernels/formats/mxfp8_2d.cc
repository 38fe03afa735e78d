#include "kernels/formats/mxfp8_2d.h"

#include <algorithm>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/formats/window.h"

namespace paramshard {
namespace {

constexpr int64_t kTileBlocks = kMx2dTileCols / kMx2dBlockSize;

int64_t BlocksIn(int64_t size) { return (size + kMx2dBlockSize - 1) / kMx2dBlockSize; }

int64_t ScaleIndex(MatrixShape shape, int64_t row, int64_t col) {
  return row / kMx2dBlockSize * BlocksIn(shape.cols) + col / kMx2dBlockSize;
}

// Stores the scales of a tile's blocks, and sets the factor of each of its columns.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void ComputeScales(const Window& tile, uint8_t* scales, float* multipliers) {
  uint32_t amax[kTileBlocks];
  float of_blocks[kTileBlocks];
  ComputeSquareAmax<kMx2dBlockSize, kMx2dTileCols>(tile, amax);
  const int64_t blocks = BlocksIn(tile.cols);
  for (int64_t i = 0; i < blocks; ++i) {
    scales[i] = ComputeE8M0Scale(FloatFromBits(amax[i]), Element::kMax);
    of_blocks[i] = E8M0EncodeMultiplier(scales[i]);
  }
  Spread<kMx2dBlockSize>(of_blocks, blocks, multipliers);
}

// `data` and `scales` are where the tile's begin; rows of data are as far apart as the tile's.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeBlocks(const Window& tile, uint8_t* data, uint8_t* scales) {
  float multipliers[kMx2dTileCols];
  ComputeScales<Element>(tile, scales, multipliers);
  for (int64_t row = 0; row < tile.rows; ++row) {
    EncodeEach<Element>(tile.Row(row), tile.cols, multipliers, data + row * tile.stride);
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeRow(const uint8_t* data, const uint8_t* scales, int64_t cols, float* out) {
  for (int64_t col = 0; col < cols; col += kMx2dBlockSize) {
    DecodeScaled<Element>(data + col, std::min(kMx2dBlockSize, cols - col), DecodeE8M0(scales[col / kMx2dBlockSize]),
                          out + col);
  }
}

}  // namespace

PARAMSHARD_SIMD_CLONES
void EncodeMxfp8_2dTile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                        MutablePlane plane) {
  const int64_t first = tile.row * shape.cols + tile.col;
  const Window window = {matrix + first, shape.cols, tile.rows, tile.cols};
  uint8_t* scales = plane.scales + ScaleIndex(shape, tile.row, tile.col);
  if (encoding.element == ElementType::kE4M3) {
    EncodeBlocks<E4M3>(window, plane.data + first, scales);
  } else {
    EncodeBlocks<E5M2>(window, plane.data + first, scales);
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeMxfp8_2d(const Encoding& encoding, ConstPlane plane, MatrixShape shape, float* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint8_t* data = plane.data + row * shape.cols;
    const uint8_t* scales = plane.scales + ScaleIndex(shape, row, 0);
    if (encoding.element == ElementType::kE4M3) {
      DecodeRow<E4M3>(data, scales, shape.cols, out + row * shape.cols);
    } else {
      DecodeRow<E5M2>(data, scales, shape.cols, out + row * shape.cols);
    }
  }
}

}  // namespace paramshard
