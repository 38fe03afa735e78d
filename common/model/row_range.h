// Ranges of rows, and the cut of a large parameter's rows over ranks.
#ifndef PARAMSHARD_COMMON_MODEL_ROW_RANGE_H_
#define PARAMSHARD_COMMON_MODEL_ROW_RANGE_H_

#include <algorithm>
#include <cstdint>

namespace paramshard {

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Rows of which a rank is the owner.
struct OwnedRows {
  int rank = 0;
  RowRange rows;
};

// Returns the rows of a full extent: torch.chunk's ceil(granules / ranks) granules. May be more than all rows.
inline int64_t RowsPerRank(int64_t rows, int64_t granule, int ranks) {
  const int64_t granules = (rows + granule - 1) / granule;
  return (granules + ranks - 1) / ranks * granule;
}

// Returns the rows of one rank. Ranks past the last row have the empty extent [rows, rows).
inline RowRange CutRows(int64_t rows, int64_t rows_per_rank, int rank) {
  return {.begin = std::min(rank * rows_per_rank, rows), .end = std::min((rank + 1) * rows_per_rank, rows)};
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_ROW_RANGE_H_
