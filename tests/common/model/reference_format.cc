#include "tests/common/model/reference_format.h"

#include <algorithm>
#include <cstdlib>

namespace paramshard {
namespace {

int64_t Blocks(int64_t size, int64_t block) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < size; begin += block) ++count;
  return count;
}

}  // namespace

int64_t ReferenceFormat::RowBytes(int64_t columns) const { return Blocks(columns * bits, 8); }

int64_t ReferenceFormat::ScaleRowBytes(Plane plane, int64_t columns) const {
  const Block& block = BlockOf(plane);
  if (block.rows == 0) return 0;
  return block.rows < 0 ? scale_bytes : Blocks(columns, block.columns) * scale_bytes;
}

int64_t ReferenceFormat::FirstScaleRow(Plane plane, int64_t begin) const {
  const Block& block = BlockOf(plane);
  return block.rows <= 0 ? 0 : Blocks(begin, block.rows);
}

int64_t ReferenceFormat::ScaleRows(Plane plane, int64_t begin, int64_t end) const {
  const Block& block = BlockOf(plane);
  if (block.rows <= 0) return -block.rows;
  return Blocks(end, block.rows) - Blocks(begin, block.rows);
}

int64_t ReferenceFormat::AllBytes(int64_t rows, int64_t columns) const {
  int64_t bytes = 0;
  for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
    if (plane == Plane::kColumnWise && !has_column_plane) continue;
    bytes += rows * RowBytes(columns) + ScaleRows(plane, 0, rows) * ScaleRowBytes(plane, columns);
  }
  return bytes + amax_bytes;
}

const std::vector<ReferenceFormat>& AllFormats() {
  static const auto* const formats = new std::vector<ReferenceFormat>{
      {Format::kFP32, 1, 32, 0, {}, {}, false},
      {Format::kBF16, 1, 16, 0, {}, {}, false},
      {Format::kFP16, 1, 16, 0, {}, {}, false},
      {Format::kFP8TensorCurrent, 1, 8, 4, {-1, -1}, {}, false},
      {Format::kFP8TensorDelayed, 1, 8, 4, {-1, -1}, {}, false},
      {Format::kFP8Block128x128, 128, 8, 4, {128, 128}, {}, false},
      {Format::kMXFP8, 32, 8, 1, {1, 32}, {32, 1}, true},
      {Format::kMXFP8_2D, 32, 8, 1, {32, 32}, {}, false},
      {Format::kNVFP4_2D, 16, 4, 1, {16, 16}, {}, false, 4},
  };
  return *formats;
}

const ReferenceFormat& ReferenceOf(Format format) {
  for (const ReferenceFormat& reference : AllFormats()) {
    if (reference.format == format) return reference;
  }
  std::abort();
}

std::vector<int> ChunkOwners(int64_t rows, int64_t granule, int ranks) {
  const int64_t granules = Blocks(rows, granule);
  const int64_t chunk = Blocks(granules, ranks);
  std::vector<int> owners;
  int owner = 0;
  for (int64_t left = granules; left > 0; left -= chunk, ++owner) {
    for (int64_t row = 0; row < std::min(chunk, left) * granule; ++row) owners.push_back(owner);
  }
  owners.resize(rows);
  return owners;
}

}  // namespace paramshard
