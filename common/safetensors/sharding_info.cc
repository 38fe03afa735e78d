#include "common/safetensors/sharding_info.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/shallow_json.h"
#include "nlohmann/json.hpp"

namespace paramshard::safetensors {
namespace {

constexpr char kSavedOffsets[] = "saved_offsets";
// Largest offset, so that the ends of parts fit int64.
constexpr uint64_t kMaxOffset = uint64_t{1} << 62;

// Takes the offsets from the parser's events, without a value of each entry: checkpoints of 100,000 tensors are opened
// at every save and restore.
class OffsetsReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit OffsetsReader(const std::vector<TensorInfo>& tensors)
      : tensors_(tensors), offsets_(tensors.size()), has_entry_(tensors.size()) {
    for (size_t i = 0; i < tensors.size(); ++i) indices_.emplace(tensors[i].name, i);
  }

  bool null() override { return IsSkipped() || Refuse(); }
  bool boolean(bool) override { return IsSkipped() || Refuse(); }
  bool number_integer(int64_t) override { return IsSkipped() || Refuse(); }
  bool number_float(double, const std::string&) override { return IsSkipped() || Refuse(); }
  bool string(std::string&) override { return IsSkipped() || Refuse(); }
  bool binary(binary_t&) override { return false; }
  bool number_unsigned(uint64_t value) override;
  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool key(std::string& name) override;
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return Refuse(); }

  // Returns the offsets of all tensors, after the parser has ended or was stopped by an error.
  absl::StatusOr<std::vector<std::vector<int64_t>>> Take();

 private:
  // The parser's place in the text.
  enum class Place { kStart, kTensors, kTensor, kEntry, kOffsets, kEnd };

  // True for the value, or a part of the value, of an entry's member that is not saved_offsets.
  bool IsSkipped() const { return place_ == Place::kEntry && !is_offsets_; }
  bool Refuse();
  absl::Status TensorsExpected() const;
  absl::Status OffsetsExpected(size_t tensor) const;

  const std::vector<TensorInfo>& tensors_;
  absl::flat_hash_map<absl::string_view, size_t> indices_;
  std::vector<std::vector<int64_t>> offsets_;
  std::vector<bool> has_entry_;
  absl::Status status_;
  Place place_ = Place::kStart;
  size_t tensor_ = 0;        // its entry is being read
  bool is_offsets_ = false;  // the entry's present member is saved_offsets
  int skipped_levels_ = 0;   // objects and lists around the next value, inside of a member that is skipped
};

bool OffsetsReader::Refuse() {
  const bool in_tensor = place_ == Place::kTensor || place_ == Place::kEntry || place_ == Place::kOffsets;
  if (status_.ok()) status_ = in_tensor ? OffsetsExpected(tensor_) : TensorsExpected();
  return false;
}

absl::Status OffsetsReader::TensorsExpected() const {
  return absl::InvalidArgumentError(
      absl::StrCat(kShardingInfoKey, ": want an object with exactly the file's ", tensors_.size(), " tensors"));
}

absl::Status OffsetsReader::OffsetsExpected(size_t tensor) const {
  const TensorInfo& info = tensors_[tensor];
  return absl::InvalidArgumentError(absl::StrCat("tensor ", NameText(info.name), ": want ", info.shape.size(), " ",
                                                 kSavedOffsets, " in ", kShardingInfoKey));
}

bool OffsetsReader::number_unsigned(uint64_t value) {
  if (IsSkipped()) return true;
  if (place_ != Place::kOffsets || value > kMaxOffset) return Refuse();
  offsets_[tensor_].push_back(static_cast<int64_t>(value));
  return true;
}

bool OffsetsReader::start_object(size_t) {
  if (IsSkipped()) {
    ++skipped_levels_;
  } else if (place_ == Place::kStart) {
    place_ = Place::kTensors;
  } else if (place_ == Place::kTensor) {
    place_ = Place::kEntry;
  } else {
    return Refuse();
  }
  return true;
}

bool OffsetsReader::end_object() {
  if (skipped_levels_ > 0) {
    --skipped_levels_;
  } else {
    place_ = place_ == Place::kEntry ? Place::kTensors : Place::kEnd;
  }
  return true;
}

bool OffsetsReader::start_array(size_t) {
  if (IsSkipped()) {
    ++skipped_levels_;
    return true;
  }
  if (place_ != Place::kEntry) return Refuse();
  place_ = Place::kOffsets;
  return true;
}

bool OffsetsReader::end_array() {
  if (skipped_levels_ > 0) {
    --skipped_levels_;
  } else {
    place_ = Place::kEntry;
  }
  return true;
}

bool OffsetsReader::key(std::string& name) {
  if (place_ == Place::kEntry) {
    if (skipped_levels_ == 0) is_offsets_ = name == kSavedOffsets;
    return true;
  }
  const auto found = indices_.find(name);
  if (found == indices_.end() || has_entry_[found->second]) return Refuse();
  tensor_ = found->second;
  has_entry_[tensor_] = true;
  is_offsets_ = true;
  place_ = Place::kTensor;
  return true;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> OffsetsReader::Take() {
  if (!status_.ok()) return status_;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!has_entry_[i]) return TensorsExpected();
    if (offsets_[i].size() != tensors_[i].shape.size()) return OffsetsExpected(i);
  }
  return std::move(offsets_);
}

}  // namespace

std::string SerializeShardingInfo(const SavedOffsets& offsets) {
  std::string text;
  for (const auto& [name, saved] : offsets) {
    absl::StrAppend(&text, text.empty() ? "{" : ",", JsonText(name), ":{\"", kSavedOffsets, "\":[",
                    absl::StrJoin(saved, ","), "]}");
  }
  return text.empty() ? "{}" : text + "}";
}

absl::StatusOr<std::vector<std::vector<int64_t>>> ParseShardingInfo(const Header& header) {
  const auto text = header.metadata.find(kShardingInfoKey);
  if (text == header.metadata.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the header's metadata: want ", kShardingInfoKey, ", got none"));
  }
  OffsetsReader reader(header.tensors);
  nlohmann::json::sax_parse(text->second, &reader);
  return reader.Take();
}

}  // namespace paramshard::safetensors
