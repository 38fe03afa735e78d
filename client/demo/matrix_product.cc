#include "client/demo/matrix_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/simd_clones.h"

namespace paramshard::demo {
namespace {

// A tile of the product stays in registers while the inner index runs.
constexpr int kTileRows = 4;
constexpr int kTileColumns = 16;
using TileRow [[gnu::vector_size(kTileColumns * sizeof(float))]] = float;

PARAMSHARD_ALWAYS_INLINE void MultiplyTile(int64_t columns, int64_t inner, StridedMatrix a, const float* b,
                                           float* product) {
  TileRow sums[kTileRows] = {};
  for (int64_t k = 0; k < inner; ++k) {
    TileRow b_row;
    std::memcpy(&b_row, b + k * columns, sizeof(b_row));
    for (int i = 0; i < kTileRows; ++i) {
      sums[i] += b_row * a.data[i * a.row_stride + k * a.column_stride];
    }
  }
  for (int i = 0; i < kTileRows; ++i) std::memcpy(product + i * columns, &sums[i], sizeof(TileRow));
}

// Tiles at the edges.
void MultiplyEdge(int64_t tile_rows, int64_t tile_columns, int64_t columns, int64_t inner, StridedMatrix a,
                  const float* b, float* product) {
  for (int64_t i = 0; i < tile_rows; ++i) {
    for (int64_t j = 0; j < tile_columns; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < inner; ++k) sum += a.data[i * a.row_stride + k * a.column_stride] * b[k * columns + j];
      product[i * columns + j] = sum;
    }
  }
}

}  // namespace

PARAMSHARD_SIMD_CLONES
void Multiply(int64_t rows, int64_t columns, int64_t inner, StridedMatrix a, const float* b, float* product) {
  if (inner == 0) {  // then the factors may be null
    std::fill_n(product, rows * columns, 0.0f);
    return;
  }
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
    StridedMatrix a_tile = a;
    a_tile.data += i * a.row_stride;
    for (int64_t j = 0; j < columns; j += kTileColumns) {
      const int64_t tile_columns = std::min<int64_t>(kTileColumns, columns - j);
      float* tile = product + i * columns + j;
      if (tile_rows == kTileRows && tile_columns == kTileColumns) {
        MultiplyTile(columns, inner, a_tile, b + j, tile);
      } else {
        MultiplyEdge(tile_rows, tile_columns, columns, inner, a_tile, b + j, tile);
      }
    }
  }
}

void Transpose(int64_t rows, int64_t columns, const float* matrix, float* transposed) {
  constexpr int64_t kBlock = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    for (int64_t j0 = 0; j0 < columns; j0 += kBlock) {
      for (int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i) {
        for (int64_t j = j0; j < std::min(j0 + kBlock, columns); ++j)
          transposed[j * rows + i] = matrix[i * columns + j];
      }
    }
  }
}

}  // namespace paramshard::demo
