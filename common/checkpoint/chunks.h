// Chunks: the pieces of a file that the manifest holds sums for.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_CHUNKS_H_
#define PARAMSHARD_COMMON_CHECKPOINT_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "common/checkpoint/content_hash.h"
#include "common/model/row_range.h"

namespace paramshard::checkpoint {

// Smallest chunk size of a file. A chunk has whole rows: as many as fit into the file's chunk size, and at least one.
// A reader of a part of a chunk reads all of it. Each chunk takes 32 bytes of the manifest.
inline constexpr int64_t kMinChunkBytes = int64_t{64} << 10;
// Largest chunk size of a file, and the size where the manifest names none.
inline constexpr int64_t kMaxChunkBytes = int64_t{4} << 20;

// Returns the chunk size for a new file of `file_bytes`: the smallest power of two, from kMinChunkBytes to 512 KiB,
// that cuts it into at most 16,384 chunks. So the manifest of a large state is 1/16,000 of it.
int64_t ChunkBytesFor(int64_t file_bytes);

// Some rows of one tensor, as they lie in a file.
struct RowRun {
  int64_t first_row = 0;  // in the whole tensor
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t offset_bytes = 0;  // from the start of the file
  int64_t chunk_bytes = kMinChunkBytes;

  int64_t size_bytes() const { return rows * row_bytes; }
  int64_t end_row() const { return first_row + rows; }
  int64_t rows_per_chunk() const { return row_bytes < chunk_bytes ? chunk_bytes / row_bytes : 1; }
};

// Cuts a run into its chunks, counted from the run's first row. A file has the sums of its tensors' chunks, in the
// order of their data.
std::vector<RowRun> ChunksOf(const RowRun& run);
// Returns the number of chunks without making them.
int64_t ChunkCount(const RowRun& run);
// Cuts a run into runs of whole chunks: as many as fit into `bytes`, and at least one.
std::vector<RowRun> RunsOfChunks(const RowRun& run, int64_t bytes);
// Returns the chunks that hold any of `rows`. Requires that all `rows` are in the run.
RowRun ChunksWith(const RowRun& run, const RowRange& rows);

// Returns the sum of a chunk: ContentHash::sum of its rows. `bytes` are its bytes in a file.
inline absl::uint128 ChunkSum(const RowRun& chunk, absl::Span<const uint8_t> bytes) {
  return HashRows(chunk.first_row, chunk.row_bytes, bytes).sum;
}

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_CHUNKS_H_
