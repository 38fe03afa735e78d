// The hashes of what a rank saves, from its files' bytes in memory.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_RANK_IMAGE_H_
#define PARAMSHARD_COMMON_CHECKPOINT_RANK_IMAGE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/rank_file.h"
#include "common/model/model_spec.h"

namespace paramshard::checkpoint {

// Returns the entry of a file whose bytes are `image`: size_bytes(client_state_bytes) of them, with header and client
// state. `chunk_sums` are the sums of Chunks(client_state_bytes), if the caller has computed them while it filled the
// image; empty: they are computed here, in one pass over the image.
FileEntry EntryOf(const PlannedFile& file, absl::Span<const uint8_t> image, int64_t client_state_bytes,
                  std::vector<absl::uint128> chunk_sums = {});

// Adds the content hashes of all rows that a rank saves. `images` and `entries` are of the plan's files. Sums of chunks
// are added up; masters with remainders, whose hash is of joined rows, are read once more.
void AddContentHashes(const ModelSpec& spec, const RankFilePlan& plan,
                      absl::Span<const absl::Span<const uint8_t>> images, absl::Span<const FileEntry> entries,
                      ContentHashes& tensors);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_RANK_IMAGE_H_
