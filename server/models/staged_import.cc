#include "server/models/staged_import.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/device/memory.h"

namespace paramshard::server {
namespace {

// Largest number of elements that are decoded and written at a time.
constexpr int64_t kElementsAtATime = 1 << 20;

bool IsFloat(TensorType type) {
  return type == TensorType::kFP32 || type == TensorType::kBF16 || type == TensorType::kFP16;
}

std::string RowsText(RowRange rows) { return absl::StrCat("[", rows.begin, ", ", rows.end, ")"); }

std::vector<uint8_t> Decoded(TensorType type, absl::Span<const uint8_t> elements) {
  const int64_t count = static_cast<int64_t>(elements.size()) / ElementBytes(type);
  std::vector<uint8_t> values(count * sizeof(float));
  DecodeElements(type, elements.data(), count, reinterpret_cast<float*>(values.data()));
  return values;
}

}  // namespace

absl::StatusOr<StagedImport> StagedImport::Begin(std::shared_ptr<Model> model) {
  ASSIGN_OR_RETURN(ImportLock lock, ImportLock::Begin(std::move(model)));
  return StagedImport(std::move(lock));
}

const ParameterSpec& StagedImport::SpecOf(int unit, int parameter) const {
  return import_lock_.model().spec().units[unit].parameters[parameter];
}

absl::Status StagedImport::Invalid(const Slice& slice, absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat("import ", SpecOf(slice.unit, slice.parameter).name, ": ", message));
}

absl::Status StagedImport::BeginSlice(const Slice& slice) {
  RETURN_IF_ERROR(CheckComplete());
  RETURN_IF_ERROR(Check(slice));
  RETURN_IF_ERROR(TakeStep(slice));
  ASSIGN_OR_RETURN(tensor_, Stage(slice));
  RETURN_IF_ERROR(AddRows(slice, *tensor_));
  if (slice.type != tensor_->row.type && tensor_->row.type != TensorType::kFP32)
    RETURN_IF_ERROR(Widen(slice, *tensor_));
  tensor_->hasher.Seek(slice.rows.begin);
  slice_ = slice;
  added_bytes_ = 0;
  const TensorRow row = RowOf(SpecOf(slice.unit, slice.parameter), slice.tensor, slice.form);
  expected_bytes_ = slice.rows.size() * row.elements * ElementBytes(slice.type);
  ++slice_count_;
  return absl::OkStatus();
}

absl::Status StagedImport::CheckComplete() const {
  if (!slice_.has_value() || added_bytes_ == expected_bytes_) return absl::OkStatus();
  return Invalid(*slice_, absl::StrCat("want ", expected_bytes_, " bytes, got ", added_bytes_));
}

absl::Status StagedImport::Check(const Slice& slice) const {
  const ParameterSpec& spec = SpecOf(slice.unit, slice.parameter);
  const RowRange& rows = slice.rows;
  if (rows.begin < 0 || rows.end <= rows.begin || rows.end > spec.rows()) {
    return Invalid(slice, absl::StrCat("want rows in [0, ", spec.rows(), "), got ", RowsText(rows)));
  }
  if (slice.step.has_value() && (*slice.step < 0 || *slice.step >= kNumberLimit)) {
    return Invalid(slice, absl::StrCat("want 0 <= step < ", kNumberLimit, ", got ", *slice.step));
  }
  return CheckForm(slice);
}

absl::Status StagedImport::CheckForm(const Slice& slice) const {
  const std::string name = TensorName(slice.tensor, slice.form);
  const TensorRow row = RowOf(SpecOf(slice.unit, slice.parameter), slice.tensor, slice.form);
  if (row.elements == 0) return Invalid(slice, absl::StrCat("the parameter has no ", name));
  if (slice.form == TensorForm::kValues) {
    if (!IsFloat(slice.type)) {
      return Invalid(slice,
                     absl::StrCat("want type FP32, BF16 or FP16 for ", name, ", got ", TensorTypeName(slice.type)));
    }
  } else if (slice.type != row.type) {
    return Invalid(slice, absl::StrCat("want type ", TensorTypeName(row.type), " for ", name, ", got ",
                                       TensorTypeName(slice.type)));
  }
  const bool is_stored = slice.form != TensorForm::kValues;
  for (const TensorForm other : {TensorForm::kValues, TensorForm::kElements, TensorForm::kRest}) {
    const bool mixes = is_stored != (other != TensorForm::kValues);
    if (mixes && tensors_.contains({slice.unit, slice.parameter, slice.tensor, other})) {
      return Invalid(slice, absl::StrCat("want a tensor either decoded or as it is stored, got ", name, " after ",
                                         TensorName(slice.tensor, other)));
    }
  }
  return absl::OkStatus();
}

absl::Status StagedImport::TakeStep(const Slice& slice) {
  if (!slice.step.has_value()) return absl::OkStatus();
  const auto [found, is_new] = steps_.try_emplace({slice.unit, slice.parameter}, *slice.step);
  if (is_new || found->second == *slice.step) return absl::OkStatus();
  return Invalid(slice,
                 absl::StrCat("want one step count for all its tensors, got ", *slice.step, " after ", found->second));
}

absl::StatusOr<StagedImport::StagedTensor*> StagedImport::Stage(const Slice& slice) {
  const Key key{slice.unit, slice.parameter, slice.tensor, slice.form};
  if (const auto found = tensors_.find(key); found != tensors_.end()) return &found->second;
  TensorRow row = RowOf(SpecOf(slice.unit, slice.parameter), slice.tensor, slice.form);
  StagedTensor tensor(row);
  row.type = slice.type;
  ASSIGN_OR_RETURN(tensor.extents, Allocate(slice, row));
  tensor.row = row;
  return &tensors_.emplace(key, std::move(tensor)).first->second;
}

// Memory that is staged already is resident, and so counts as used.
absl::StatusOr<std::vector<StagedImport::Rows>> StagedImport::Allocate(const Slice& slice, const TensorRow& row) const {
  std::vector<Rows> extents;
  // A row is as large as its client makes it, and at least one is written at a time: its values, and their encoding.
  int64_t needed = 2 * row.elements * static_cast<int64_t>(sizeof(float));
  for (const auto& shard : import_lock_.model().committed().shards) {
    const ShardExtent* extent = shard->extents().Find(slice.unit, slice.parameter);
    Rows& rows = extents.emplace_back();
    rows.size_bytes = extent == nullptr ? 0 : extent->rows.size() * row.size_bytes();
    needed += rows.size_bytes;
    // Rows of a master that is not kept wait in fp32, beside the staged ones, until planes are made of them.
    const bool waits = extent != nullptr && !SpecOf(slice.unit, slice.parameter).master_type.has_value();
    if (waits) needed += extent->elements * static_cast<int64_t>(sizeof(float));
  }
  const int64_t available = AvailableHostBytes();
  bool fits = needed <= available;
  for (Rows& rows : extents) {
    if (fits) rows.bytes.reset(new (std::nothrow) uint8_t[rows.size_bytes]());
    fits = fits && rows.bytes != nullptr;
  }
  if (fits) return extents;
  return absl::ResourceExhaustedError(absl::StrCat("import ", SpecOf(slice.unit, slice.parameter).name, ": ", needed,
                                                   " bytes needed to stage it, ", available, " bytes free"));
}

// Slices of several types are all widened to fp32.
absl::Status StagedImport::Widen(const Slice& slice, StagedTensor& tensor) const {
  const TensorRow wide{TensorType::kFP32, tensor.row.elements};
  ASSIGN_OR_RETURN(std::vector<Rows> extents, Allocate(slice, wide));
  for (size_t rank = 0; rank < extents.size(); ++rank) {
    const Rows& narrow = tensor.extents[rank];
    DecodeElements(tensor.row.type, narrow.bytes.get(), narrow.size_bytes / ElementBytes(tensor.row.type),
                   reinterpret_cast<float*>(extents[rank].bytes.get()));
  }
  tensor.extents = std::move(extents);
  tensor.row = wide;
  return absl::OkStatus();
}

absl::Status StagedImport::AddRows(const Slice& slice, StagedTensor& tensor) const {
  RowRange rows = slice.rows;
  auto& given = tensor.given;
  auto after = given.lower_bound(rows.begin);
  const bool overlaps = (after != given.end() && after->first < rows.end) ||
                        (after != given.begin() && std::prev(after)->second > rows.begin);
  if (overlaps) {
    return Invalid(slice, absl::StrCat("want each row of its ", TensorName(slice.tensor, slice.form), " once, got ",
                                       RowsText(rows), " again"));
  }
  if (after != given.end() && after->first == rows.end) {
    rows.end = after->second;
    after = given.erase(after);
  }
  if (after != given.begin() && std::prev(after)->second == rows.begin) {
    std::prev(after)->second = rows.end;
  } else {
    given.emplace(rows.begin, rows.end);
  }
  return absl::OkStatus();
}

absl::Status StagedImport::Add(absl::Span<const uint8_t> bytes) {
  if (!slice_.has_value()) return absl::InvalidArgumentError("import: want a tensor header, got elements");
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0 || size % ElementBytes(slice_->type) != 0 || size > expected_bytes_ - added_bytes_) {
    return Invalid(*slice_, absl::StrCat("want whole elements, at least one and ", expected_bytes_,
                                         " bytes in all, got ", size, " bytes at offset ", added_bytes_));
  }
  const bool widens = slice_->form == TensorForm::kValues && slice_->type != TensorType::kFP32;
  if (!widens) {
    tensor_->hasher.Add(bytes);
    KeepOwnedElements(bytes);
  } else {
    const std::vector<uint8_t> values = Decoded(slice_->type, bytes);
    tensor_->hasher.Add(values);
    KeepOwnedElements(tensor_->row.type == TensorType::kFP32 ? values : bytes);
  }
  added_bytes_ += size;
  size_bytes_ += size;
  return absl::OkStatus();
}

// The overlap with every local rank's extent, counted in elements of the whole tensor. `elements` are of the type in
// which the tensor is kept.
void StagedImport::KeepOwnedElements(absl::Span<const uint8_t> elements) {
  const TensorRow& row = tensor_->row;
  const int64_t element_bytes = ElementBytes(row.type);
  const int64_t begin = slice_->rows.begin * row.elements + added_bytes_ / ElementBytes(slice_->type);
  const int64_t end = begin + static_cast<int64_t>(elements.size()) / element_bytes;
  for (size_t rank = 0; rank < tensor_->extents.size(); ++rank) {
    const ShardExtent* extent =
        import_lock_.model().committed().shards[rank]->extents().Find(slice_->unit, slice_->parameter);
    if (extent == nullptr) continue;
    const int64_t first = extent->rows.begin * row.elements;
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, extent->rows.end * row.elements);
    if (from >= to) continue;
    std::memcpy(tensor_->extents[rank].bytes.get() + (from - first) * element_bytes,
                elements.data() + (from - begin) * element_bytes, (to - from) * element_bytes);
  }
}

// An array without its counterpart would be read with the other one's old bytes.
absl::Status StagedImport::CheckStoredArraysMatch() const {
  for (const auto& [key, staged] : tensors_) {
    const auto& [unit, parameter, tensor, form] = key;
    const ParameterSpec& spec = SpecOf(unit, parameter);
    if (form == TensorForm::kValues || RowOf(spec, tensor, TensorForm::kRest).elements == 0) continue;
    const TensorForm other_form = form == TensorForm::kElements ? TensorForm::kRest : TensorForm::kElements;
    const auto other = tensors_.find({unit, parameter, tensor, other_form});
    if (other != tensors_.end() && other->second.given == staged.given) continue;
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": want ", TensorName(tensor, other_form),
                                                   " of the same rows as its ", TensorName(tensor, form),
                                                   ", got different rows or none"));
  }
  return absl::OkStatus();
}

// Planes are made from whole extents.
absl::Status StagedImport::CheckPlanesAreWhole() const {
  for (const auto& [key, staged] : tensors_) {
    const auto& [unit, parameter, tensor, form] = key;
    if (SpecOf(unit, parameter).master_type.has_value()) continue;
    for (const auto& shard : import_lock_.model().committed().shards) {
      const ShardExtent* const extent = shard->extents().Find(unit, parameter);
      if (extent == nullptr) continue;
      const auto after = staged.given.upper_bound(extent->rows.begin);
      if (after != staged.given.begin() && std::prev(after)->second >= extent->rows.end) continue;
      return absl::InvalidArgumentError(absl::StrCat("import ", SpecOf(unit, parameter).name, ": want rows ",
                                                     RowsText(extent->rows),
                                                     " of a frozen parameter without a master in one import, "
                                                     "got a part of them"));
    }
  }
  return absl::OkStatus();
}

bool StagedImport::IsWhole(int unit, int parameter, StateTensor tensor) const {
  if (RowOf(SpecOf(unit, parameter), tensor, TensorForm::kValues).elements == 0) return true;

  const std::map<int64_t, int64_t> all = {{0, SpecOf(unit, parameter).rows()}};
  for (const TensorForm form : {TensorForm::kValues, TensorForm::kElements}) {
    const auto found = tensors_.find({unit, parameter, tensor, form});
    if (found != tensors_.end() && found->second.given == all) return true;
  }
  return false;
}

bool StagedImport::IsWhole(const Numbers& numbers) const {
  if (!numbers.commit_number.has_value() || !numbers.version.has_value()) return false;
  const auto& units = import_lock_.model().spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int parameter = 0; parameter < static_cast<int>(units[unit].parameters.size()); ++parameter) {
      if (SpecOf(unit, parameter).trainable && !steps_.contains({unit, parameter})) return false;
      for (const StateTensor tensor : kStateTensors) {
        if (!IsWhole(unit, parameter, tensor)) return false;
      }
    }
  }
  return true;
}

ImportedContent StagedImport::Content(const Numbers& numbers) const {
  Digest digest;
  digest.Add(tensors_.size());
  for (const auto& [key, staged] : tensors_) {
    const auto& [unit, parameter, tensor, form] = key;
    digest.Add(unit).Add(parameter).Add(static_cast<int>(tensor)).Add(static_cast<int>(form));
    digest.Add(staged.hasher.sum());
  }
  for (const auto& [parameter, step] : steps_) digest.Add(parameter.first).Add(parameter.second).Add(step);
  return {.digest = digest.value(), .whole = IsWhole(numbers)};
}

absl::Status StagedImport::MakeRoom() const {
  for (const auto& shard : import_lock_.model().committed().shards) {
    std::vector<const ShardExtent*> extents;
    for (const auto& [key, staged] : tensors_) {
      const ShardExtent* const extent = shard->extents().Find(std::get<0>(key), std::get<1>(key));
      if (extent != nullptr) extents.push_back(extent);
    }
    if (const absl::Status status = shard->MakeRoom(extents); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("import into ", import_lock_.model().spec().name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<History> StagedImport::Apply(const Numbers& numbers, const ChangeSource& source) {
  RETURN_IF_ERROR(CheckComplete());
  RETURN_IF_ERROR(CheckStoredArraysMatch());
  RETURN_IF_ERROR(CheckPlanesAreWhole());
  // Makes room while the import can still be refused: a change that breaks off leaves the model unusable.
  const absl::Cleanup give_up_room = [this] {
    for (const auto& shard : import_lock_.model().committed().shards) shard->GiveUpRoom();
  };
  RETURN_IF_ERROR(MakeRoom());
  return import_lock_.model().changes().Import({.commit_number = numbers.commit_number,
                                                .version = numbers.version,
                                                .history = numbers.history,
                                                .content = Content(numbers),
                                                .source = source,
                                                .run = numbers.run},
                                               [this] { return Write(); });
}

int64_t StagedImport::kept_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, tensor] : tensors_) {
    for (const Rows& rows : tensor.extents) bytes += rows.size_bytes;
  }
  return bytes;
}

absl::Status StagedImport::Write() const {
  for (const auto& [key, tensor] : tensors_) RETURN_IF_ERROR(WriteTensor(key, tensor));
  for (const auto& [parameter, step] : steps_) {
    for (const auto& shard : import_lock_.model().committed().shards) {
      const ShardExtent* extent = shard->extents().Find(parameter.first, parameter.second);
      if (extent != nullptr) shard->SetStep(*extent, step);
    }
  }
  return absl::OkStatus();
}

absl::Status StagedImport::WriteTensor(const Key& key, const StagedTensor& tensor) const {
  const int64_t rows_at_a_time = std::max<int64_t>(1, kElementsAtATime / tensor.row.elements);
  for (size_t rank = 0; rank < tensor.extents.size(); ++rank) {
    Shard& shard = *import_lock_.model().committed().shards[rank];
    const ShardExtent* extent = shard.extents().Find(std::get<0>(key), std::get<1>(key));
    if (extent == nullptr) continue;
    for (const auto& [begin, end] : tensor.given) {
      const int64_t last = std::min(end, extent->rows.end);
      for (int64_t row = std::max(begin, extent->rows.begin); row < last; row += rows_at_a_time) {
        const uint8_t* bytes = tensor.extents[rank].bytes.get() + (row - extent->rows.begin) * tensor.row.size_bytes();
        const RowRange rows{row, std::min(row + rows_at_a_time, last)};
        RETURN_IF_ERROR(WriteRows(shard, *extent, key, tensor.row, bytes, rows));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StagedImport::WriteRows(Shard& shard, const ShardExtent& extent, const Key& key, const TensorRow& row,
                                     const uint8_t* bytes, RowRange rows) const {
  const auto& [unit, parameter, tensor, form] = key;
  if (form != TensorForm::kValues) {
    return shard.WriteStoredRows(extent, tensor, form, rows,
                                 {bytes, static_cast<size_t>(rows.size() * row.size_bytes())});
  }
  std::vector<float> values(rows.size() * row.elements);
  DecodeElements(row.type, bytes, static_cast<int64_t>(values.size()), values.data());
  return shard.WriteRows(extent, tensor, rows, values);
}

}  // namespace paramshard::server
