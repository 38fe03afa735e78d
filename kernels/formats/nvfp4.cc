#include "kernels/formats/nvfp4.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/scale_math.h"
#include "kernels/formats/window.h"

namespace paramshard {
namespace {

constexpr int64_t kTileBlocks = kNvfp4TileCols / kNvfp4BlockSize;

int64_t BlocksIn(int64_t size) { return (size + kNvfp4BlockSize - 1) / kNvfp4BlockSize; }

int64_t ScaleIndex(MatrixShape shape, int64_t row, int64_t col) {
  return row / kNvfp4BlockSize * BlocksIn(shape.cols) + col / kNvfp4BlockSize;
}

// Columns come in pairs; `col` is even.
int64_t PairsIn(int64_t cols) { return (cols + 1) / 2; }
int64_t DataIndex(MatrixShape shape, int64_t row, int64_t col) { return row * PairsIn(shape.cols) + col / 2; }

// Stores the scales of a tile's blocks, and sets the factor of each of its columns.
PARAMSHARD_ALWAYS_INLINE void ComputeScales(const Window& tile, float tensor_scale, uint8_t* scales,
                                            float* multipliers) {
  uint32_t amax[kTileBlocks];
  float of_blocks[kTileBlocks];
  ComputeSquareAmax<kNvfp4BlockSize, kNvfp4TileCols>(tile, amax);
  const int64_t blocks = BlocksIn(tile.cols);
  for (int64_t i = 0; i < blocks; ++i) {
    scales[i] = ComputeNvfp4BlockScale(FloatFromBits(amax[i]), tensor_scale);
    of_blocks[i] = Nvfp4EncodeMultiplier(scales[i], tensor_scale);
  }
  Spread<kNvfp4BlockSize>(of_blocks, blocks, multipliers);
}

// packed[j] = codes 2j and 2j + 1, the first one in the low half. Read as 16-bit numbers, which vectorizes.
PARAMSHARD_ALWAYS_INLINE void Pack(const uint8_t* __restrict codes, int64_t pairs, uint8_t* __restrict packed) {
  for (int64_t j = 0; j < pairs; ++j) {
    uint16_t pair;
    memcpy(&pair, codes + 2 * j, sizeof(pair));
    packed[j] = static_cast<uint8_t>(pair | (pair >> 4));
  }
}

PARAMSHARD_ALWAYS_INLINE void Unpack(const uint8_t* __restrict packed, int64_t pairs, uint8_t* __restrict codes) {
  for (int64_t j = 0; j < pairs; ++j) {
    const uint16_t pair = static_cast<uint16_t>((packed[j] & 0xf) | ((packed[j] & 0xf0) << 4));
    memcpy(codes + 2 * j, &pair, sizeof(pair));
  }
}

// The decoded scale of each of `cols` columns of a row of blocks.
PARAMSHARD_ALWAYS_INLINE void DecodeScales(const uint8_t* scales, int64_t cols, float* of_columns) {
  float of_blocks[kTileBlocks];
  const int64_t blocks = BlocksIn(cols);
  for (int64_t i = 0; i < blocks; ++i) of_blocks[i] = E4M3::Decode(scales[i]);
  Spread<kNvfp4BlockSize>(of_blocks, blocks, of_columns);
}

PARAMSHARD_ALWAYS_INLINE void DecodeEach(const uint8_t* __restrict codes, int64_t count, const float* __restrict scales,
                                         float decode_amax, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = CanonicalNan(DecodeNvfp4(E2M1::Decode(codes[i]), scales[i], decode_amax));
  }
}

PARAMSHARD_SIMD_CLONES
void DecodeTile(ConstPlane plane, MatrixShape shape, const Tile& tile, float decode_amax, float* out) {
  float scales[kNvfp4TileCols];
  uint8_t codes[kNvfp4TileCols];
  DecodeScales(plane.scales + ScaleIndex(shape, tile.row, tile.col), tile.cols, scales);
  for (int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    Unpack(plane.data + DataIndex(shape, row, tile.col), PairsIn(tile.cols), codes);
    DecodeEach(codes, tile.cols, scales, decode_amax, out + row * shape.cols + tile.col);
  }
}

}  // namespace

PARAMSHARD_SIMD_CLONES
void EncodeNvfp4Tile(const float* matrix, MatrixShape shape, const Tile& tile, float tensor_amax, MutablePlane plane) {
  const Window window = {matrix + tile.row * shape.cols + tile.col, shape.cols, tile.rows, tile.cols};
  float multipliers[kNvfp4TileCols];
  uint8_t codes[kNvfp4TileCols];
  ComputeScales(window, ComputeNvfp4TensorScale(tensor_amax), plane.scales + ScaleIndex(shape, tile.row, tile.col),
                multipliers);
  for (int64_t row = 0; row < tile.rows; ++row) {
    EncodeEach<E2M1>(window.Row(row), tile.cols, multipliers, codes);
    if (tile.cols % 2 != 0) codes[tile.cols] = 0;
    Pack(codes, PairsIn(tile.cols), plane.data + DataIndex(shape, tile.row + row, tile.col));
  }
}

void DecodeNvfp4(ConstPlane plane, MatrixShape shape, float* out) {
  if (shape.rows == 0 || shape.cols == 0) return;
  float amax;
  memcpy(&amax, plane.amax, sizeof(amax));
  const float decode_amax = Nvfp4DecodeAmax(amax);
  ForEachTile(Format::kNVFP4_2D, shape, [&](const Tile& tile) { DecodeTile(plane, shape, tile, decode_amax, out); });
}

}  // namespace paramshard
