// The pieces of files that a checkpoint keeps sums of.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_CHUNKS_H_
#define PARAMSHARD_PROTO_CHECKPOINT_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "proto/checkpoint/content_hash.h"
#include "proto/model/row_range.h"

namespace paramshard::checkpoint {

// A chunk has whole rows, as many as fit the chunk bytes of its file, and at least one. Who needs a part of a chunk reads
// all of it; each takes 32 bytes of the manifest.
inline constexpr int64_t kMinChunkBytes = int64_t{64} << 10;
// Files may have chunks of up to so many bytes, and have these where they do not say it.
inline constexpr int64_t kMaxChunkBytes = int64_t{4} << 20;

// Of a file of so many bytes that is to be written: the smallest power of two, from kMinChunkBytes to 512 KiB, that cuts
// it into at most 16,384 chunks. So the manifest of a large state is 1/16,000 of it.
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

// Cuts a run into its chunks, counted from the run's first row. The sums of a file are those of its tensors' chunks, in
// the order of their data.
std::vector<RowRun> ChunksOf(const RowRun& run);
// How many, without making them.
int64_t ChunkCount(const RowRun& run);
// Cuts it into runs of whole chunks: as many as fit these bytes, and at least one.
std::vector<RowRun> RunsOfChunks(const RowRun& run, int64_t bytes);
// Those of its chunks that have any of these rows, which are some of the run's.
RowRun ChunksWith(const RowRun& run, const RowRange& rows);

// The sum that belongs to a chunk: ContentHash::sum of its rows, in the bytes of a file that holds it.
inline absl::uint128 ChunkSum(const RowRun& chunk, absl::Span<const uint8_t> bytes) {
  return HashRows(chunk.first_row, chunk.row_bytes, bytes).sum;
}

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_CHUNKS_H_
