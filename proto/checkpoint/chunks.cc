#include "proto/checkpoint/chunks.h"

#include <algorithm>

namespace paramshard::checkpoint {

int64_t ChunkCount(const RowRun& run) {
  if (run.rows == 0) return 0;
  return (run.rows - 1) / RowsPerChunk(run.row_bytes) + 1;
}

std::vector<RowRun> ChunksOf(const RowRun& run) {
  std::vector<RowRun> chunks;
  if (run.rows == 0) return chunks;
  const int64_t rows_per_chunk = RowsPerChunk(run.row_bytes);
  chunks.reserve(ChunkCount(run));
  for (int64_t row = 0; row < run.rows; row += rows_per_chunk) {
    chunks.push_back({.first_row = run.first_row + row,
                      .rows = std::min(rows_per_chunk, run.rows - row),
                      .row_bytes = run.row_bytes,
                      .offset_bytes = run.offset_bytes + row * run.row_bytes});
  }
  return chunks;
}

}  // namespace paramshard::checkpoint
