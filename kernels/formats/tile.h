// Tiles: the pieces of a matrix that are encoded one by one, small enough to stay in a core's cache between the
// optimizer's update of a tile and its encoding.
//
// Internal to kernels/: codec.h and fused_step.h are the interface.

#ifndef PARAMSHARD_KERNELS_FORMATS_TILE_H_
#define PARAMSHARD_KERNELS_FORMATS_TILE_H_

#include <algorithm>
#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// Rows [row, row + rows) and columns [col, col + cols) of a matrix. It begins at block borders and ends at block
// borders or at the matrix's edge.
struct Tile {
  int64_t row;
  int64_t col;
  int64_t rows;
  int64_t cols;
};

// The largest tile of a format.
MatrixShape TileShape(Format format);

// Returns the shape in which a matrix is walked: one long row if its format has no blocks, else the matrix's shape.
MatrixShape WalkedShape(Format format, int64_t rows, int64_t cols);

// Calls visit(tile) for the tiles of a matrix of WalkedShape(), left to right, then down.
template <typename Visitor>
void ForEachTile(Format format, MatrixShape walked, const Visitor& visit) {
  const MatrixShape step = TileShape(format);
  for (int64_t row = 0; row < walked.rows; row += step.rows) {
    for (int64_t col = 0; col < walked.cols; col += step.cols) {
      visit(Tile{row, col, std::min(step.rows, walked.rows - row), std::min(step.cols, walked.cols - col)});
    }
  }
}

// Encodes one tile of `matrix` (of WalkedShape(), or of its own shape) into the planes of the whole matrix. A plane
// whose data is null is left out, and so are the values that StoreTensorScaling() stores.
void EncodeTile(const Encoding& encoding, const float* matrix, MatrixShape walked, const Tile& tile,
                MutablePlane row_wise, MutablePlane column_wise, const TensorScaling& scaling);

// Stores a plane's values of the whole tensor: the scale_inv of FP8_TENSOR_*, the amax of NVFP4_2D.
void StoreTensorScaling(const Encoding& encoding, const TensorScaling& scaling, MutablePlane row_wise);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_TILE_H_
