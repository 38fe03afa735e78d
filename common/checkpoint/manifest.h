// The manifest of a checkpoint, and the parts that it is made from: the list of files, and their hashes.
//
// Both are JSON objects whose last member is their own hash. A text ends with `"hash": "<32 digits>"\n}\n`, and the
// hash is XXH3-128 of all bytes before its first digit. So a flipped bit anywhere is found before the text is parsed.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_MANIFEST_H_
#define PARAMSHARD_COMMON_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/checkpoint/chunks.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/rank_file.h"
#include "common/model/model_spec.h"

namespace paramshard::checkpoint {

// The format that this code writes. It reads this and older ones.
inline constexpr int kFormatVersion = 1;
// Largest manifest; a longer text is refused before it is read.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// A safetensors file of the checkpoint.
struct FileEntry {
  std::string name;
  int64_t size_bytes = 0;
  int64_t header_bytes = 0;       // with its length and spaces: where the data begins
  absl::uint128 header_hash = 0;  // HashBytes of these bytes
  int64_t chunk_bytes = kMinChunkBytes;
  // Sums of the chunks (chunks.h) of its tensors, in the order of their data. Rows of a tensor are counted from its
  // saved_offsets. A tensor of one dimension is one row.
  std::vector<absl::uint128> chunk_sums = {};

  friend bool operator==(const FileEntry&, const FileEntry&) = default;
};

// Content hashes by tensor key. A master is hashed over its fp32 rows, also where the files hold BF16 and remainders.
using ContentHashes = absl::btree_map<std::string, ContentHash>;

// The files that one daemon has written: part-00002.json, which node 0 merges and removes.
struct Part {
  int node = 0;
  std::vector<FileEntry> files = {};                // of its ranks, in the order of the ranks
  ContentHashes tensors = {};                       // of the rows in them
  std::map<std::string, int64_t> step_counts = {};  // of the parameters that its ranks hold rows of, by name

  friend bool operator==(const Part&, const Part&) = default;
};

std::string SerializePart(const Part& part);
// DATA_LOSS for a text that does not match its hash, INVALID_ARGUMENT for a text that is not a part.
absl::StatusOr<Part> ParsePart(absl::string_view text);

struct Manifest {
  // The state that this history continues, if it began with a restore.
  struct Parent {
    absl::uint128 history = 0;
    int64_t step = 0;
    friend bool operator==(const Parent&, const Parent&) = default;
  };

  std::string model = {};
  absl::uint128 save_id = 0;                // drawn for every save
  int64_t save_serial = 0;                  // counts the saves of a folder from 1: the largest is the latest
  absl::Time saved_at = absl::UnixEpoch();  // whole milliseconds
  absl::uint128 history = 0;
  int64_t step = 0;  // the commit number
  int64_t version = 0;
  std::optional<Parent> parent = {};
  World world = {};
  uint64_t spec_fingerprint = 0;      // ModelSpecFingerprint, of the program that has saved
  int64_t spec_bytes = 0;             // of spec.binpb
  absl::uint128 spec_hash = 0;        // HashBytes of it
  std::vector<FileEntry> files = {};  // rank files by rank and index, then files of the common state
  ContentHashes tensors = {};         // of all tensors of all parameters

  // Returns the size of all files that it names, without the manifest itself.
  int64_t size_bytes() const;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// RESOURCE_EXHAUSTED for a text of more than kMaxManifestBytes.
absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest);
// DATA_LOSS for a text that does not match its hash; FAILED_PRECONDITION for a newer format; INVALID_ARGUMENT naming
// the member for a text that is not a manifest. Sizes and numbers are in range; whether the files exist is not checked.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

// Adds the files and hashes of all parts, in the order of nodes, to a manifest that has the model's numbers, and
// returns the step counts in the model's order. INVALID_ARGUMENT unless the parts together have the files of every rank
// of the world and every row of every tensor exactly once, and agree on step counts. Add the files of the common state
// afterwards, with `manifest.files.push_back`.
absl::StatusOr<std::vector<int64_t>> MergeParts(const ModelSpec& spec, const std::vector<Part>& parts,
                                                Manifest& manifest);

// Checks that `files` are, in order, the files of every rank of a world: one for each rank, followed by the rank's
// further files. INVALID_ARGUMENT naming the first file that differs.
absl::Status CheckRankFiles(absl::Span<const FileEntry> files, const World& world);

// Returns the entry of a file of the common state that is in memory. INVALID_ARGUMENT for other bytes.
absl::StatusOr<FileEntry> EntryOf(const std::string& name, absl::string_view bytes);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_MANIFEST_H_
