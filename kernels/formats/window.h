// A piece of a float32 matrix, and the loops that encode its rows.
//
// Internal to kernels/. The loops are inlined into the functions that are compiled per instruction set (simd_clones.h).

#ifndef PARAMSHARD_KERNELS_FORMATS_WINDOW_H_
#define PARAMSHARD_KERNELS_FORMATS_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"

namespace paramshard {

// `rows` x `cols` elements whose rows begin `stride` elements apart.
struct Window {
  const float* first;
  int64_t stride;
  int64_t rows;
  int64_t cols;

  PARAMSHARD_ALWAYS_INLINE const float* Row(int64_t row) const { return first + row * stride; }
};

// Asks for values that will be read soon. The next row of a tile begins in another page, which hardware does not
// foresee.
PARAMSHARD_ALWAYS_INLINE void Prefetch(const float* values, int64_t count) {
  constexpr int64_t kCacheLineFloats = 16;
  for (int64_t i = 0; i < count; i += kCacheLineFloats) __builtin_prefetch(values + i);
}

// The largest AmaxBits() of `count` values.
PARAMSHARD_ALWAYS_INLINE uint32_t LargestAmaxBits(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, AmaxBits(values[i]));
  return largest;
}

// The largest AmaxBits() of each kBlock x kBlock block of a tile of at most kBlock rows and kTileCols columns. Columns
// first: rows of a small block are too short to be searched by themselves.
template <int64_t kBlock, int64_t kTileCols>
PARAMSHARD_ALWAYS_INLINE void ComputeSquareAmax(const Window& tile, uint32_t* __restrict amax) {
  uint32_t columns[kTileCols] = {};
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float* __restrict source = tile.Row(row);
    if (row + 1 < tile.rows) Prefetch(tile.Row(row + 1), tile.cols);
    for (int64_t i = 0; i < tile.cols; ++i) columns[i] = std::max(columns[i], AmaxBits(source[i]));
  }
  for (int64_t block = 0; block * kBlock < tile.cols; ++block) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, columns[block * kBlock + i]);
    amax[block] = largest;
  }
}

// Repeats each block's value for its elements: one loop over a whole row is faster than a short loop per block.
template <int64_t kBlock>
PARAMSHARD_ALWAYS_INLINE void Spread(const float* __restrict of_blocks, int64_t blocks, float* __restrict of_elements) {
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < kBlock; ++i) of_elements[block * kBlock + i] = of_blocks[block];
  }
}

// data[i] = the code of source[i] * multipliers[i].
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeEach(const float* __restrict source, int64_t count,
                                         const float* __restrict multipliers, uint8_t* __restrict data) {
  for (int64_t i = 0; i < count; ++i) data[i] = Element::Encode(source[i] * multipliers[i]);
}

// data[i] = the code of source[i] * scale.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void EncodeScaled(const float* __restrict source, int64_t count, float scale,
                                           uint8_t* __restrict data) {
  for (int64_t i = 0; i < count; ++i) data[i] = Element::Encode(source[i] * scale);
}

// out[i] = the value of data[i] * scale.
template <typename Element>
PARAMSHARD_ALWAYS_INLINE void DecodeScaled(const uint8_t* __restrict data, int64_t count, float scale,
                                           float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = CanonicalNan(Element::Decode(data[i]) * scale);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_WINDOW_H_
