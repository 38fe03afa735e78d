#include "kernels/formats/codec.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/format.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/fp8_tensor.h"
#include "kernels/formats/mxfp8.h"
#include "kernels/formats/mxfp8_2d.h"
#include "kernels/formats/nvfp4.h"
#include "kernels/formats/tile.h"
#include "kernels/formats/unscaled.h"
#include "kernels/formats/window.h"

namespace paramshard {
namespace {

constexpr int64_t kFlatTileCols = 4096;

}  // namespace

MatrixShape TileShape(Format format) {
  switch (format) {
    case Format::kMXFP8:
      return {kMxBlockSize, kMxTileCols};
    case Format::kMXFP8_2D:
      return {kMx2dBlockSize, kMx2dTileCols};
    case Format::kNVFP4_2D:
      return {kNvfp4BlockSize, kNvfp4TileCols};
    case Format::kFP8Block128x128:
      return {kFp8BlockSize, kFp8BlockTileCols};
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return {1, kFlatTileCols};
  }
  return {};
}

MatrixShape WalkedShape(Format format, int64_t rows, int64_t cols) {
  return GranuleRows(format) == 1 ? MatrixShape{1, rows * cols} : MatrixShape{rows, cols};
}

void EncodeTile(const Encoding& encoding, const float* matrix, MatrixShape walked, const Tile& tile,
                MutablePlane row_wise, MutablePlane column_wise, const TensorScaling& scaling) {
  if (row_wise.data == nullptr && !HasColumnPlane(encoding.format)) return;
  const int64_t first = tile.row * walked.cols + tile.col;
  switch (encoding.format) {
    case Format::kFP32:
      return EncodeFloats(matrix + first, tile.cols, row_wise.data + first * sizeof(float));
    case Format::kBF16:
      return EncodeBFloat16s(matrix + first, tile.cols, row_wise.data + first * sizeof(uint16_t));
    case Format::kFP16:
      return EncodeFloat16s(matrix + first, tile.cols, row_wise.data + first * sizeof(uint16_t));
    case Format::kMXFP8:
      return EncodeMxfp8Tile(encoding, matrix, walked, tile, row_wise, column_wise);
    case Format::kMXFP8_2D:
      return EncodeMxfp8_2dTile(encoding, matrix, walked, tile, row_wise);
    case Format::kNVFP4_2D:
      return EncodeNvfp4Tile(matrix, walked, tile, scaling.amax, row_wise);
    case Format::kFP8Block128x128:
      return EncodeFp8BlockTile(encoding, matrix, walked, tile, row_wise);
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return EncodeFp8Tensor(encoding.element, matrix + first, tile.cols, Fp8TensorScale(encoding, scaling),
                             row_wise.data + first);
  }
}

void StoreTensorScaling(const Encoding& encoding, const TensorScaling& scaling, MutablePlane row_wise) {
  if (AmaxBytes(encoding.format) > 0) {
    if (row_wise.amax != nullptr) memcpy(row_wise.amax, &scaling.amax, sizeof(scaling.amax));
  } else if (NeedsAmax(encoding.format) && row_wise.scales != nullptr) {
    const float scale_inv = 1.0f / Fp8TensorScale(encoding, scaling);
    memcpy(row_wise.scales, &scale_inv, sizeof(scale_inv));
  }
}

MutablePlane PlaneAt(const Encoding& encoding, Plane which, MutablePlane plane, int64_t cols, int64_t row) {
  if (plane.data != nullptr) plane.data += DataBytes(encoding, row, cols);
  if (plane.scales != nullptr) plane.scales += ScaleOffset(encoding, which, row, 0, cols);
  return plane;
}

void EncodePlanes(const Encoding& encoding, const float* matrix, int64_t rows, int64_t cols, MutablePlane row_wise,
                  MutablePlane column_wise, const TensorScaling& scaling) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  const MatrixShape walked = WalkedShape(encoding.format, rows, cols);
  StoreTensorScaling(encoding, scaling, row_wise);
  ForEachTile(encoding.format, walked,
              [&](const Tile& tile) { EncodeTile(encoding, matrix, walked, tile, row_wise, column_wise, scaling); });
}

PARAMSHARD_SIMD_CLONES
float Amax(const float* values, int64_t count) { return FloatFromBits(LargestAmaxBits(values, count)); }

void DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, float* out) {
  PARAMSHARD_CHECK(CheckEncodable(encoding).ok());
  PARAMSHARD_CHECK(plane == Plane::kRowWise || HasColumnPlane(encoding.format));
  switch (encoding.format) {
    case Format::kFP32:
      return DecodeFloats(encoded.data, rows * cols, out);
    case Format::kBF16:
      return DecodeBFloat16s(encoded.data, rows * cols, out);
    case Format::kFP16:
      return DecodeFloat16s(encoded.data, rows * cols, out);
    case Format::kMXFP8:
      return DecodeMxfp8(encoding, plane, encoded, {rows, cols}, out);
    case Format::kMXFP8_2D:
      return DecodeMxfp8_2d(encoding, encoded, {rows, cols}, out);
    case Format::kNVFP4_2D:
      return DecodeNvfp4(encoded, {rows, cols}, out);
    case Format::kFP8Block128x128:
      return DecodeFp8Block(encoding, encoded, {rows, cols}, out);
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return DecodeFp8Tensor(encoding.element, encoded, rows * cols, out);
  }
}

}  // namespace paramshard
