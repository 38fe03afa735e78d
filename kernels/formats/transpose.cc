#include "kernels/formats/transpose.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

// Rows and columns of a square that stays in the L1 cache.
constexpr int64_t kSquare = 64;

// Calls `visit(row, col)` for all of a matrix, square after square.
template <typename Visit>
void ForEachInSquares(int64_t rows, int64_t cols, Visit visit) {
  for (int64_t row = 0; row < rows; row += kSquare) {
    for (int64_t col = 0; col < cols; col += kSquare) {
      for (int64_t c = col; c < std::min(col + kSquare, cols); ++c) {
        for (int64_t r = row; r < std::min(row + kSquare, rows); ++r) visit(r, c);
      }
    }
  }
}

}  // namespace

absl::StatusOr<int> TransposableWidth(Format format) {
  const int64_t bits = DataBytes({.format = format}, 1, 8);
  if (bits == 8 || bits == 4) return static_cast<int>(bits);
  return absl::UnimplementedError(
      absl::StrCat("transpose: want a format with 8 or 4 bits per element, got ", FormatName(format)));
}

void TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out) {
  ForEachInSquares(rows, cols, [=](int64_t row, int64_t col) { out[col * rows + row] = data[row * cols + col]; });
}

void TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out) {
  const int64_t row_bytes = (cols + 1) / 2;
  const int64_t out_row_bytes = (rows + 1) / 2;
  std::fill_n(out, cols * out_row_bytes, uint8_t{0});
  ForEachInSquares(rows, cols, [=](int64_t row, int64_t col) {
    const int nibble = (data[row * row_bytes + col / 2] >> (col % 2 * 4)) & 0xf;
    out[col * out_row_bytes + row / 2] |= static_cast<uint8_t>(nibble << (row % 2 * 4));
  });
}

}  // namespace paramshard
