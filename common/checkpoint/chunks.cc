#include "common/checkpoint/chunks.h"

#include <algorithm>

namespace paramshard::checkpoint {
namespace {

// Returns some rows of the run, which are counted from its first row.
RowRun Part(const RowRun& run, int64_t begin, int64_t end) {
  RowRun part = run;
  part.first_row += begin;
  part.rows = end - begin;
  part.offset_bytes += begin * run.row_bytes;
  return part;
}

std::vector<RowRun> Cut(const RowRun& run, int64_t rows) {
  std::vector<RowRun> parts;
  parts.reserve((run.rows + rows - 1) / rows);
  for (int64_t row = 0; row < run.rows; row += rows) parts.push_back(Part(run, row, std::min(row + rows, run.rows)));
  return parts;
}

}  // namespace

int64_t ChunkBytesFor(int64_t file_bytes) {
  constexpr int64_t kMostBytes = int64_t{512} << 10;
  constexpr int64_t kMostChunks = 16'384;
  int64_t bytes = kMinChunkBytes;
  while (bytes < kMostBytes && bytes * kMostChunks < file_bytes) bytes *= 2;
  return bytes;
}

int64_t ChunkCount(const RowRun& run) {
  if (run.rows == 0) return 0;
  return (run.rows - 1) / run.rows_per_chunk() + 1;
}

std::vector<RowRun> ChunksOf(const RowRun& run) {
  if (run.rows == 0) return {};
  return Cut(run, run.rows_per_chunk());
}

std::vector<RowRun> RunsOfChunks(const RowRun& run, int64_t bytes) {
  if (run.rows == 0) return {};
  const int64_t chunks = bytes / run.row_bytes / run.rows_per_chunk();
  return Cut(run, std::max<int64_t>(chunks, 1) * run.rows_per_chunk());
}

RowRun ChunksWith(const RowRun& run, const RowRange& rows) {
  const int64_t per_chunk = run.rows_per_chunk();
  const int64_t first_chunk = (rows.begin - run.first_row) / per_chunk;
  const int64_t end_chunk = (rows.end - run.first_row + per_chunk - 1) / per_chunk;
  return Part(run, first_chunk * per_chunk, std::min(end_chunk * per_chunk, run.rows));
}

}  // namespace paramshard::checkpoint
