#include "kernels/formats/codec.h"

#include "kernels/base/check.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/mxfp8.h"
#include "kernels/formats/tile.h"
#include "kernels/formats/unscaled.h"

namespace paramshard {
namespace {

constexpr int64_t kFlatTileCols = 4096;

}  // namespace

MatrixShape TileShape(Format format) {
  switch (format) {
    case Format::kMXFP8:
      return {kMxBlockSize, kMxTileCols};
    case Format::kFP8Block128x128:
      return {kFp8BlockSize, kFp8BlockTileCols};
    default:
      return {1, kFlatTileCols};
  }
}

MatrixShape WalkedShape(Format format, int64_t rows, int64_t cols) {
  return GranuleRows(format) == 1 ? MatrixShape{1, rows * cols} : MatrixShape{rows, cols};
}

void EncodeTile(const Encoding& encoding, const float* matrix, MatrixShape walked, const Tile& tile,
                MutablePlane row_wise, MutablePlane column_wise) {
  if (encoding.format == Format::kMXFP8) {
    return EncodeMxfp8Tile(encoding, matrix, walked, tile, row_wise, column_wise);
  }
  if (row_wise.data == nullptr) return;
  switch (encoding.format) {
    case Format::kFP32:
      return EncodeFloats(matrix + tile.col, tile.cols, row_wise.data + tile.col * sizeof(float));
    case Format::kBF16:
      return EncodeBFloat16s(matrix + tile.col, tile.cols, row_wise.data + tile.col * sizeof(uint16_t));
    default:
      return EncodeFp8BlockTile(encoding, matrix, walked, tile, row_wise);
  }
}

void EncodePlanes(const Encoding& encoding, const float* matrix, int64_t rows, int64_t cols, MutablePlane row_wise,
                  MutablePlane column_wise, const TensorScaling& /*scaling*/) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  const MatrixShape walked = WalkedShape(encoding.format, rows, cols);
  ForEachTile(encoding.format, walked,
              [&](const Tile& tile) { EncodeTile(encoding, matrix, walked, tile, row_wise, column_wise); });
}

void DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, float* out) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  PARAMSHARD_CHECK(plane == Plane::kRowWise || HasColumnPlane(encoding.format));
  switch (encoding.format) {
    case Format::kFP32:
      return DecodeFloats(encoded.data, rows * cols, out);
    case Format::kBF16:
      return DecodeBFloat16s(encoded.data, rows * cols, out);
    case Format::kMXFP8:
      return DecodeMxfp8(encoding, plane, encoded, {rows, cols}, out);
    default:
      return DecodeFp8Block(encoding, encoded, {rows, cols}, out);
  }
}

}  // namespace paramshard
