// An import before anything changes: tensors are checked, hashed and kept as they come, and applied at once.
#ifndef PARAMSHARD_SERVER_MODELS_STAGED_IMPORT_H_
#define PARAMSHARD_SERVER_MODELS_STAGED_IMPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/state_tensor.h"
#include "server/models/import_lock.h"
#include "server/models/model.h"
#include "server/terms/digest.h"
#include "server/terms/history.h"

namespace paramshard::server {

// Holds the model's import lock for as long as it lives. It keeps the rows of this daemon's ranks alone, each once,
// in the type in which they come: what it takes is bounded by the model's own state in fp32. It hashes the other
// daemons' rows with its own, so that all that are given the same come to the same history.
//
//   ASSIGN_OR_RETURN(StagedImport import, StagedImport::Begin(model));
//   RETURN_IF_ERROR(import.BeginSlice({.unit = 0, .parameter = 1, .rows = {0, 96}}));
//   RETURN_IF_ERROR(import.Add(bytes));  // as often as it takes
//   ASSIGN_OR_RETURN(const History history, import.Apply({.version = 7}));
//
// Errors are INVALID_ARGUMENT where nothing else is said. One thread at a time.
class StagedImport {
 public:
  // UNAVAILABLE while another import of the model is under way, or the daemon drains; errors of ModelState::usable().
  static absl::StatusOr<StagedImport> Begin(std::shared_ptr<Model> model);
  explicit StagedImport(ImportLock lock) : import_lock_(std::move(lock)) {}

  struct Slice {
    int unit = 0;
    int parameter = 0;
    StateTensor tensor = StateTensor::kMaster;
    TensorForm form = TensorForm::kValues;
    TensorType type = TensorType::kFP32;
    RowRange rows;                     // of the parameter
    std::optional<int64_t> step = {};  // that the parameter has taken
  };
  // Begins a slice when the slice before is complete. Slices of one tensor do not overlap, and are all
  // decoded or all as stored. Slices of one parameter that carry a step carry the same one. RESOURCE_EXHAUSTED when
  // host memory does not suffice.
  absl::Status BeginSlice(const Slice& slice);
  // Adds the slice's next elements, whole ones.
  absl::Status Add(absl::Span<const uint8_t> bytes);
  // Returns the bytes of the present slice that have come.
  int64_t added_bytes() const { return added_bytes_; }

  struct Numbers {
    std::optional<int64_t> commit_number = {};  // unset: they stay
    std::optional<int64_t> version = {};
    std::optional<HistoryId> history = {};  // unset: a random id, and a lineage made from the content
    absl::uint128 run = 0;                  // History::run
  };
  // Changes the model. May be called once. Returns the history that begins. RESOURCE_EXHAUSTED without room to make
  // planes of what has no master: nothing has changed. Errors of StateChanges::Import too. `source`: where the same
  // content can be read again.
  absl::StatusOr<History> Apply(const Numbers& numbers, const ChangeSource& source = {});

  // Returns the content that was given, from which Apply makes the lineage.
  ImportedContent Content(const Numbers& numbers) const;

  // How much was given.
  int64_t tensor_count() const { return static_cast<int64_t>(tensors_.size()); }
  int64_t slice_count() const { return slice_count_; }
  int64_t size_bytes() const { return size_bytes_; }
  // The part of it that is kept for this daemon's ranks.
  int64_t kept_bytes() const;

 private:
  // A rank's rows.
  struct Rows {
    std::unique_ptr<uint8_t[]> bytes;
    int64_t size_bytes = 0;
  };
  struct StagedTensor {
    explicit StagedTensor(const TensorRow& row) : row(row), hasher(row.size_bytes()) {}

    TensorRow row;                     // as it is kept
    std::vector<Rows> extents;         // by rank of this daemon
    std::map<int64_t, int64_t> given;  // rows: end by begin, neither overlapping nor adjacent
    RowHasher hasher;                  // of rows in fp32, or as they are stored
  };
  // Unit, parameter, tensor, form.
  using Key = std::tuple<int, int, StateTensor, TensorForm>;

  const ParameterSpec& SpecOf(int unit, int parameter) const;
  // "import w: ".
  absl::Status Invalid(const Slice& slice, absl::string_view message) const;
  absl::Status Check(const Slice& slice) const;
  absl::Status CheckComplete() const;
  absl::Status CheckForm(const Slice& slice) const;
  absl::Status CheckStoredArraysMatch() const;
  absl::Status CheckPlanesAreWhole() const;
  absl::Status TakeStep(const Slice& slice);
  absl::StatusOr<StagedTensor*> Stage(const Slice& slice);
  absl::StatusOr<std::vector<Rows>> Allocate(const Slice& slice, const TensorRow& row) const;
  absl::Status Widen(const Slice& slice, StagedTensor& tensor) const;
  absl::Status AddRows(const Slice& slice, StagedTensor& tensor) const;
  void KeepOwnedElements(absl::Span<const uint8_t> elements);
  bool IsWhole(const Numbers& numbers) const;
  bool IsWhole(int unit, int parameter, StateTensor tensor) const;
  absl::Status MakeRoom() const;
  absl::Status Write() const;
  absl::Status WriteTensor(const Key& key, const StagedTensor& tensor) const;
  absl::Status WriteRows(Shard& shard, const ShardExtent& extent, const Key& key, const TensorRow& row,
                         const uint8_t* bytes, RowRange rows) const;

  ImportLock import_lock_;
  std::map<Key, StagedTensor> tensors_;
  std::map<std::pair<int, int>, int64_t> steps_;  // by unit and parameter
  std::optional<Slice> slice_;                    // the present one
  StagedTensor* tensor_ = nullptr;                // that it is of
  int64_t expected_bytes_ = 0;
  int64_t added_bytes_ = 0;
  int64_t slice_count_ = 0;
  int64_t size_bytes_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_STAGED_IMPORT_H_
