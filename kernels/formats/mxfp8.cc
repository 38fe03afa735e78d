#include "kernels/formats/mxfp8.h"

#include <algorithm>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "kernels/formats/window.h"

namespace paramshard {
namespace {

constexpr int64_t kTileBlocks = kMxTileCols / kMxBlockSize;

int64_t BlocksIn(int64_t size) { return (size + kMxBlockSize - 1) / kMxBlockSize; }

// The amax of every block of a tile, as bits.
struct TileAmax {
  uint32_t row_wise[kMxBlockSize][kTileBlocks];
  uint32_t column_wise[kMxTileCols] = {};
};

// Takes the amax of one row of a 32-column strip, and enters its elements into the amaxes of their columns.
PARAMSHARD_ALWAYS_INLINE uint32_t StripRowAmax(const float* __restrict source, int64_t count,
                                               uint32_t* __restrict columns) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = AmaxBits(source[i]);
    columns[i] = std::max(columns[i], bits);
    amax = std::max(amax, bits);
  }
  return amax;
}

PARAMSHARD_ALWAYS_INLINE void ComputeAmax(const Window& tile, TileAmax& amax) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    for (int64_t col = 0; col < tile.cols; col += kMxBlockSize) {
      const int64_t count = std::min(kMxBlockSize, tile.cols - col);
      if (row + 1 < tile.rows) Prefetch(tile.Row(row + 1) + col, count);
      // Two calls, so that the loop of a whole block is compiled for its constant length.
      amax.row_wise[row][col / kMxBlockSize] =
          count == kMxBlockSize ? StripRowAmax(tile.Row(row) + col, kMxBlockSize, amax.column_wise + col)
                                : StripRowAmax(tile.Row(row) + col, count, amax.column_wise + col);
    }
  }
}

// Computes the E8M0 scales of `count` blocks, and the factors of their elements.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void ComputeScales(const uint32_t* __restrict amax, int64_t count, uint8_t* __restrict scales,
                                            float* __restrict multipliers) {
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t scale = ComputeE8M0Scale(FloatFromBits(amax[i]), Element::kMax);
    scales[i] = scale;
    multipliers[i] = E8M0EncodeMultiplier(scale);
  }
}

// Row-wise plane of a tile: `data` and `scales` are where the tile's begin.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeRowWise(const Window& tile, const TileAmax& amax, MutablePlane plane) {
  const int64_t blocks = BlocksIn(tile.cols);
  float of_blocks[kTileBlocks];
  float multipliers[kMxTileCols];
  for (int64_t row = 0; row < tile.rows; ++row) {
    ComputeScales<Element>(amax.row_wise[row], blocks, plane.scales + row * BlocksIn(tile.stride), of_blocks);
    Spread<kMxBlockSize>(of_blocks, blocks, multipliers);
    EncodeEach<Element>(tile.Row(row), tile.cols, multipliers, plane.data + row * tile.stride);
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeColumnWise(const Window& tile, const TileAmax& amax, MutablePlane plane) {
  float multipliers[kMxTileCols];
  ComputeScales<Element>(amax.column_wise, tile.cols, plane.scales, multipliers);
  for (int64_t row = 0; row < tile.rows; ++row) {
    EncodeEach<Element>(tile.Row(row), tile.cols, multipliers, plane.data + row * tile.stride);
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeBothWays(const Window& tile, MutablePlane row_wise, MutablePlane column_wise) {
  TileAmax amax;
  ComputeAmax(tile, amax);
  if (row_wise.data != nullptr) EncodeRowWise<Element>(tile, amax, row_wise);
  if (column_wise.data != nullptr) EncodeColumnWise<Element>(tile, amax, column_wise);
}

// Returns the part of a plane that begins with the block at `scale_index` and the element at `data_index`.
MutablePlane PlaneAt(MutablePlane plane, int64_t data_index, int64_t scale_index) {
  if (plane.data == nullptr) return plane;
  return {plane.data + data_index, plane.scales + scale_index};
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeRowWise(ConstPlane plane, MatrixShape shape, float* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; col += kMxBlockSize) {
      const int64_t first = row * shape.cols + col;
      const float scale = DecodeE8M0(plane.scales[row * BlocksIn(shape.cols) + col / kMxBlockSize]);
      DecodeScaled<Element>(plane.data + first, std::min(kMxBlockSize, shape.cols - col), scale, out + first);
    }
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeEach(const uint8_t* __restrict data, const uint8_t* __restrict scales,
                                         int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = CanonicalNan(Element::Decode(data[i]) * DecodeE8M0(scales[i]));
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeColumnWise(ConstPlane plane, MatrixShape shape, float* out) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t first = row * shape.cols;
    DecodeEach<Element>(plane.data + first, plane.scales + row / kMxBlockSize * shape.cols, shape.cols, out + first);
  }
}

template <typename Element>
PARAMSHARD_ALWAYS_INLINE void Decode(Plane plane, ConstPlane encoded, MatrixShape shape, float* out) {
  if (plane == Plane::kRowWise) {
    DecodeRowWise<Element>(encoded, shape, out);
  } else {
    DecodeColumnWise<Element>(encoded, shape, out);
  }
}

}  // namespace

PARAMSHARD_SIMD_CLONES
void EncodeMxfp8Tile(const Encoding& encoding, const float* matrix, MatrixShape shape, const Tile& tile,
                     MutablePlane row_wise, MutablePlane column_wise) {
  const int64_t first = tile.row * shape.cols + tile.col;
  const Window window = {matrix + first, shape.cols, tile.rows, tile.cols};
  const MutablePlane rows = PlaneAt(row_wise, first, tile.row * BlocksIn(shape.cols) + tile.col / kMxBlockSize);
  const MutablePlane columns = PlaneAt(column_wise, first, tile.row / kMxBlockSize * shape.cols + tile.col);
  if (encoding.element == ElementType::kE4M3) {
    EncodeBothWays<E4M3>(window, rows, columns);
  } else {
    EncodeBothWays<E5M2>(window, rows, columns);
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeMxfp8(const Encoding& encoding, Plane plane, ConstPlane encoded, MatrixShape shape, float* out) {
  if (encoding.element == ElementType::kE4M3) {
    Decode<E4M3>(plane, encoded, shape, out);
  } else {
    Decode<E5M2>(plane, encoded, shape, out);
  }
}

}  // namespace paramshard
