// Reading a checkpoint, into any world.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_READER_H_
#define PARAMSHARD_COMMON_CHECKPOINT_READER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/chunks.h"
#include "common/checkpoint/common_state.h"
#include "common/checkpoint/damage.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/model_spec.h"
#include "common/model/name_index.h"
#include "common/model/row_range.h"
#include "common/safetensors/page_buffer.h"
#include "common/safetensors/regular_file.h"

namespace paramshard::checkpoint {

// An open checkpoint. Opening reads manifest, spec, common state and the headers of all files, and checks all that can
// be checked without the rows: hashes, sizes, owners, and that every row of every tensor of the spec is there exactly
// once. Rows are read and checked when they are asked for. Nothing in the files is trusted before it is checked.
//
// Immutable, movable; several threads may read. Reading rows that a file has lost meanwhile is an error.
//
//   ASSIGN_OR_RETURN(const Reader reader, Reader::Open(folder, {.owner = geteuid()}));
//   RETURN_IF_ERROR(reader.ReadRows(unit, parameter, ArrayKind::kMaster, {128, 256}, [&](int64_t row, auto bytes) {
//     return shard.WriteStoredRows(..., bytes);
//   }));
class Reader {
 public:
  struct Options {
    // User who must own the folder and every file, unless root does; others must have no right to write to them.
    // Unset: any owner and mode.
    std::optional<uid_t> owner = {};
    // How files of ranks are read. Files of small tensors always use the page cache.
    safetensors::RegularFile::PageCache page_cache = safetensors::RegularFile::PageCache::kUsed;
  };

  // Errors name the file, and where possible tensor and rows: NOT_FOUND without a folder or a manifest in it;
  // PERMISSION_DENIED for a wrong owner or mode; FAILED_PRECONDITION for a newer format; INVALID_ARGUMENT for a folder
  // that is not a checkpoint, or has files of other ranks; DATA_LOSS for damaged, missing or truncated files;
  // UNAVAILABLE if a file cannot be read.
  static absl::StatusOr<Reader> Open(const std::string& folder, const Options& options);
  // Opens what can be read of a damaged checkpoint: calls `report` for each fault instead of failing at the first.
  // Returns nullopt if manifest or spec cannot be read.
  static std::optional<Reader> OpenDamaged(const std::string& folder, const Options& options,
                                           absl::FunctionRef<void(const Damage&)> report);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The spec as it was saved; `unit` and `parameter` below index it. A restore into a different spec looks parameters
  // up by name.
  const ModelSpec& spec() const { return *spec_; }
  const NameIndex& names() const { return *names_; }
  const CommonState& common() const { return common_; }
  // Returns the client state that a rank of the saved world sent with the last commit; empty if it sent none. A rank
  // beyond the saved world gets the client state of rank 0. Requires rank >= 0.
  absl::StatusOr<std::string> ClientState(int rank) const;

  // Gives `sink` rows [rows.begin, rows.end) of an array, in order, in runs of at most kPlaceBytes (or one row):
  // (first_row, bytes) with whole rows, as they are stored, after the chunks that hold them have been read once and
  // match their sums. Rows are the array's (ArrayShape::RowsOf). A call reads at most two chunks more than it was asked
  // for, so ask for an extent at once. The first error of `sink` ends the call. INVALID_ARGUMENT for an array or rows
  // that the parameter does not have; DATA_LOSS naming file, tensor and rows; UNAVAILABLE.
  using RowSink = absl::FunctionRef<absl::Status(int64_t first_row, absl::Span<const uint8_t> bytes)>;
  absl::Status ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows, RowSink sink) const;
  // Reads the rows into memory of exactly their size.
  absl::Status ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows, absl::Span<uint8_t> out) const;

  // Chunks of a tensor that follow each other in a file.
  struct Place {
    int file = 0;           // index into manifest().files
    int chunk = 0;          // the first one: index into its chunk_sums
    absl::string_view key;  // as long as the reader lives
    RowRun rows;

    // Returns the chunks that hold any of `wanted`. Requires that all of them are rows of this place.
    Place ChunksWith(const RowRange& wanted) const;
  };
  // Largest read, unless one row is longer.
  static constexpr int64_t kPlaceBytes = int64_t{4} << 20;
  // Returns all chunks, in places of at most kPlaceBytes or one chunk, in the order of files and of their data.
  std::vector<Place> Places() const;
  // Reads chunks into memory of `buffer`. DATA_LOSS naming file, tensor and rows of the first chunk that does not match
  // its sum; UNAVAILABLE.
  absl::StatusOr<absl::Span<const uint8_t>> Read(const Place& place, safetensors::PageBuffer& buffer) const;
  // Reads the chunks, and calls `report` for each damaged one.
  void Check(const Place& place, safetensors::PageBuffer& buffer, absl::FunctionRef<void(const Damage&)> report) const;

 private:
  class Opener;

  // A run of rows of one tensor in one file.
  struct Segment {
    int file = 0;
    int first_chunk = 0;  // index into the file's chunk_sums
    RowRun run;
  };
  // Ascending in rows.
  using Segments = std::vector<Segment>;

  Reader() = default;
  // Returns the chunks of a segment that hold `rows`, in places of at most kPlaceBytes or one chunk.
  static std::vector<Place> PlacesOf(const Segment& segment, absl::string_view key, const RowRange& rows);
  // Returns the chunks of some files.
  std::vector<Place> PlacesIn(absl::FunctionRef<bool(int file)> wanted) const;
  // Errors do not name the place.
  absl::StatusOr<absl::Span<const uint8_t>> ReadBytes(const Place& place, safetensors::PageBuffer& buffer) const;
  // Calls `report` for each chunk of `bytes` that does not match its sum.
  void CheckSums(const Place& place, absl::Span<const uint8_t> bytes,
                 absl::FunctionRef<void(const Damage&)> report) const;
  Damage DamageOf(const Place& place, const absl::Status& status) const;

  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<const ModelSpec> spec_;  // names_ refers to it
  std::unique_ptr<const NameIndex> names_;
  CommonState common_;
  std::vector<std::optional<safetensors::RegularFile>> files_;  // by index in manifest_.files; null when damaged
  absl::node_hash_map<std::string, Segments> tensors_;          // by key
};

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_READER_H_
