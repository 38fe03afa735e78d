// Reading a checkpoint, into any world.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_READER_H_
#define PARAMSHARD_PROTO_CHECKPOINT_READER_H_

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
#include "proto/checkpoint/chunks.h"
#include "proto/checkpoint/common_state.h"
#include "proto/checkpoint/damage.h"
#include "proto/checkpoint/manifest.h"
#include "proto/checkpoint/tensor_key.h"
#include "proto/model/model_spec.h"
#include "proto/model/name_index.h"
#include "proto/model/row_range.h"
#include "proto/safetensors/page_buffer.h"
#include "proto/safetensors/regular_file.h"

namespace paramshard::checkpoint {

// An open checkpoint. Opening reads manifest, spec, common state and the headers of all files, and checks all that can
// be checked without the rows: hashes, sizes, owners, and that every row of every tensor of the spec is there exactly
// once. Rows are read where they are asked for, and checked then. Whatever the files hold is hostile until checked.
//
// Immutable, movable; several threads may read. Rows that a file loses meanwhile are errors.
//
//   ASSIGN_OR_RETURN(const Reader reader, Reader::Open(folder, {.owner = geteuid()}));
//   RETURN_IF_ERROR(reader.ReadRows(unit, parameter, ArrayKind::kMaster, {128, 256}, [&](int64_t row, auto bytes) {
//     return shard.WriteStoredRows(..., bytes);
//   }));
class Reader {
 public:
  struct Options {
    // Demands that the folder and every file belong to this user or to root, and that nobody else may write to them.
    // Unset: whoever can be read from.
    std::optional<uid_t> owner = {};
    // How files of ranks are read. Files of small tensors always use the page cache.
    safetensors::RegularFile::PageCache page_cache = safetensors::RegularFile::PageCache::kUsed;
  };

  // Errors name the file, and tensor and rows where it is about them: NOT_FOUND without a folder or a manifest in it;
  // PERMISSION_DENIED for a wrong owner or mode; FAILED_PRECONDITION for a newer format; INVALID_ARGUMENT for what is
  // no checkpoint, or has files of other ranks; DATA_LOSS for what is damaged, lacks a file or is shorter than it was;
  // UNAVAILABLE where a file cannot be read.
  static absl::StatusOr<Reader> Open(const std::string& folder, const Options& options);
  // As well as it goes: calls `report` for all that is wrong instead of failing at the first, and leaves that out. None
  // where manifest or spec cannot be read.
  static std::optional<Reader> OpenDamaged(const std::string& folder, const Options& options,
                                           absl::FunctionRef<void(const Damage&)> report);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // As it was saved; units and parameters below are its. A restore into another spec looks parameters up by name.
  const ModelSpec& spec() const { return *spec_; }
  const NameIndex& names() const { return *names_; }
  const CommonState& common() const { return common_; }
  // What a rank of the saved world sent with the last commit; empty where that was nothing. In another world rank r
  // gets that of rank r where there was one, else that of rank 0. Requires rank >= 0.
  absl::StatusOr<std::string> ClientState(int rank) const;

  // Gives `sink` rows [rows.begin, rows.end) of an array, in order, in runs of at most kPlaceBytes (or one row):
  // (first_row, bytes) with whole rows, as they are stored, after the chunks in which they lie have been read once and
  // found to have their sums. Rows are the array's (ArrayShape::RowsOf). So a call reads at most two chunks more than is
  // asked for: ask for an extent at once. The first error of `sink` ends it. INVALID_ARGUMENT for an array that the
  // parameter does not have or rows that it does not have; DATA_LOSS naming file, tensor and rows; UNAVAILABLE.
  using RowSink = absl::FunctionRef<absl::Status(int64_t first_row, absl::Span<const uint8_t> bytes)>;
  absl::Status ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows, RowSink sink) const;
  // The same into memory of exactly their size.
  absl::Status ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows, absl::Span<uint8_t> out) const;

  // Chunks of a tensor that follow each other in a file.
  struct Place {
    int file = 0;           // index into manifest().files
    int chunk = 0;          // the first one: index into its chunk_sums
    absl::string_view key;  // as long as the reader lives
    RowRun rows;

    // Its chunks that have any of these rows, which are some of its own.
    Place ChunksWith(const RowRange& wanted) const;
  };
  // What is read at a time, unless a row is longer.
  static constexpr int64_t kPlaceBytes = int64_t{4} << 20;
  // All chunks, in places of at most kPlaceBytes or one chunk: in the order of files and of their data.
  std::vector<Place> Places() const;
  // Reads chunks into memory of `buffer`. DATA_LOSS naming file, tensor and rows of the first that does not have its
  // sum; UNAVAILABLE.
  absl::StatusOr<absl::Span<const uint8_t>> Read(const Place& place, safetensors::PageBuffer& buffer) const;
  // Reads them, and calls `report` for each that is not whole.
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
  // The chunks of a segment with some of its rows, in places of at most kPlaceBytes or one chunk.
  static std::vector<Place> PlacesOf(const Segment& segment, absl::string_view key, const RowRange& rows);
  // The chunks of some files.
  std::vector<Place> PlacesIn(absl::FunctionRef<bool(int file)> wanted) const;
  // Errors do not say where.
  absl::StatusOr<absl::Span<const uint8_t>> ReadBytes(const Place& place, safetensors::PageBuffer& buffer) const;
  // Calls `report` for each chunk of bytes that have been read that does not have its sum.
  void CheckSums(const Place& place, absl::Span<const uint8_t> bytes,
                 absl::FunctionRef<void(const Damage&)> report) const;
  Damage DamageOf(const Place& place, const absl::Status& status) const;

  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<const ModelSpec> spec_;  // where names_ refers to
  std::unique_ptr<const NameIndex> names_;
  CommonState common_;
  std::vector<std::optional<safetensors::RegularFile>> files_;  // by index in manifest_.files; null when damaged
  absl::node_hash_map<std::string, Segments> tensors_;          // by key
};

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_READER_H_
