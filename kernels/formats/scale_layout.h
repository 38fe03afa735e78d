// Block scales as matrix products read them.
//
// A block-scaled product (cuBLAS: CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 and VEC16_UE4M3) reads, for an operand whose
// rows run along the direction of the sum, one scale for every 1 x 32 (NVFP4: 1 x 16) elements: a matrix of bytes
//
//   [M, ceil(K / B)] for the operand that is the matrix itself (row-wise: the forward product),
//   [K, ceil(M / B)] for the operand that is its transpose (column-wise: the backward product).
//
// Compact scales hold each block once, so they are expanded on the way:
//
// | format   | operand     | element [r, c] is compact element                                        |
// | -------- | ----------- | ------------------------------------------------------------------------ |
// | MXFP8    | row-wise    | [r, c] of the row-wise plane's [M, ceil(K/32)]                           |
// | MXFP8    | column-wise | [c, r] of the column-wise plane's [ceil(M/32), K]: transposed            |
// | MXFP8_2D | row-wise    | [r / 32, c] of [ceil(M/32), ceil(K/32)]: every row of a block            |
// | MXFP8_2D | column-wise | [c, r / 32] of the same                                                  |
// | NVFP4_2D | row-wise    | [r / 16, c] of [ceil(M/16), ceil(K/16)]                                  |
// | NVFP4_2D | column-wise | [c, r / 16] of the same                                                  |
//
// Padded128x4: rows padded to a multiple of 128 and columns to one of 4, row-major. Swizzled128x4: the same padded
// matrix in tiles of 128 x 4, each 512 bytes, tiles row-major; inside a tile element [r, c] lies at (r % 32) * 16 + (r
// / 32) * 4 + c (cuBLAS, "1D Block Scaling Factors Layout"). Bytes of padding are zero.

#ifndef PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_H_
#define PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/host_device.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// Compact: the scales as they are stored and sent, of any format that has some.
enum class ScaleLayout : uint8_t { kCompact = 1, kPadded128x4 = 2, kSwizzled128x4 = 3 };

// Sources and targets of the scales of one operand: the tables above for one matrix. A value type.
struct ScaleArrangement {
  static constexpr int64_t kTileRows = 128;
  static constexpr int64_t kTileCols = 4;

  ScaleLayout layout = ScaleLayout::kCompact;
  // Shape of the operand's scales without padding. Compact: one row of bytes.
  int64_t rows = 0;
  int64_t cols = 0;
  // Rows that read the same compact scales, and the steps between compact scales of neighbouring blocks.
  int64_t row_block = 1;
  int64_t row_stride = 0;
  int64_t col_stride = 0;

  PARAMSHARD_HOST_DEVICE int64_t padded_rows() const {
    return layout == ScaleLayout::kCompact ? rows : (rows + kTileRows - 1) / kTileRows * kTileRows;
  }
  PARAMSHARD_HOST_DEVICE int64_t padded_cols() const {
    return layout == ScaleLayout::kCompact ? cols : (cols + kTileCols - 1) / kTileCols * kTileCols;
  }
  // Bytes that arranging writes.
  PARAMSHARD_HOST_DEVICE int64_t bytes() const { return padded_rows() * padded_cols(); }

  // The compact scale of element [row, col], which is no padding.
  PARAMSHARD_HOST_DEVICE int64_t Source(int64_t row, int64_t col) const {
    return row / row_block * row_stride + col * col_stride;
  }
  // Returns the offset of element [row, col] of the padded matrix.
  PARAMSHARD_HOST_DEVICE int64_t Target(int64_t row, int64_t col) const {
    if (layout != ScaleLayout::kSwizzled128x4) return row * padded_cols() + col;
    const int64_t tile = row / kTileRows * (padded_cols() / kTileCols) + col / kTileCols;
    const int64_t tile_row = row % kTileRows;
    return tile * kTileRows * kTileCols + tile_row % 32 * 16 + tile_row / 32 * 4 + col % kTileCols;
  }
};

// The arrangement of a rows x cols matrix's scales. `operand` is the matrix itself (row-wise) or its transpose
// (column-wise). INVALID_ARGUMENT for an unknown layout, a format without scales of blocks of bytes (without any
// scales: for compact ones), and an operand that the plane's blocks do not serve.
absl::StatusOr<ScaleArrangement> FindScaleArrangement(const Encoding& encoding, Plane plane, Plane operand,
                                                      int64_t rows, int64_t cols, ScaleLayout layout);

// Writes arrangement.bytes() bytes.
void ArrangeScales(const ScaleArrangement& arrangement, const uint8_t* compact, uint8_t* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_H_
