// Sizes of formats after docs/reference/numerics.md, independent of kernels/formats.
#ifndef PARAMSHARD_TESTS_COMMON_MODEL_REFERENCE_FORMAT_H_
#define PARAMSHARD_TESTS_COMMON_MODEL_REFERENCE_FORMAT_H_

#include <cstdint>
#include <vector>

#include "kernels/formats/format_id.h"

namespace paramshard {

struct Block {
  int64_t rows = 0;  // 0: no scales; -1: one scale for the tensor
  int64_t columns = 0;
};

struct ReferenceFormat {
  Format format;
  int64_t granule;
  int64_t bits;
  int64_t scale_bytes;
  Block row_wise;
  Block column_wise;
  bool has_column_plane;
  int64_t amax_bytes = 0;

  int64_t RowBytes(int64_t columns) const;
  // Bytes of one row of scale blocks; 4 for the scale of a tensor.
  int64_t ScaleRowBytes(Plane plane, int64_t columns) const;
  // Scale rows that begin in rows [begin, end). The scale of a tensor belongs to every extent.
  int64_t FirstScaleRow(Plane plane, int64_t begin) const;
  int64_t ScaleRows(Plane plane, int64_t begin, int64_t end) const;
  // Data, scales and amax of all planes of a matrix.
  int64_t AllBytes(int64_t rows, int64_t columns) const;
  bool OneScale() const { return row_wise.rows == -1; }

 private:
  const Block& BlockOf(Plane plane) const { return plane == Plane::kRowWise ? row_wise : column_wise; }
};

const std::vector<ReferenceFormat>& AllFormats();
const ReferenceFormat& ReferenceOf(Format format);

// torch.chunk(granules, ranks) by construction: the owner of each row. Chunks of ceil(T / ranks)
// granules are cut from the front until nothing is left.
std::vector<int> ChunkOwners(int64_t rows, int64_t granule, int ranks);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_COMMON_MODEL_REFERENCE_FORMAT_H_
