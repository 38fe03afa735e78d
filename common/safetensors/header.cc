#include "common/safetensors/header.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/safetensors/shallow_json.h"
#include "nlohmann/json.hpp"

namespace paramshard::safetensors {
namespace {

constexpr char kMetadataName[] = "__metadata__";
constexpr size_t kMaxNameText = 200;
constexpr int64_t kDataAlignment = 8;

// Handles the parser's events and refuses the first one that is not valid in the format, so that no text can make it
// hold more than tensors.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // The first error of the text, after the parser has stopped.
  const absl::Status& status() const { return status_; }
  Header Take() { return std::move(header_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override { return Unexpected(text); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_integer(int64_t value) override { return Unexpected(absl::StrCat(value)); }
  bool number_unsigned(uint64_t value) override;
  bool string(std::string& text) override;
  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool key(std::string& name) override;
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("want JSON, got an error at byte ", position));
  }

 private:
  // The parser's place in the text.
  enum class Place { kStart, kTensors, kMetadata, kMetadataText, kTensor, kDtype, kShape, kOffsets, kEnd };
  static constexpr size_t kPlaces = static_cast<size_t>(Place::kEnd) + 1;

  bool Refuse(absl::string_view message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(Subject(), message));
    return false;
  }
  bool Unexpected(absl::string_view what) { return Refuse(absl::StrCat("want ", Expected(), ", got ", what)); }
  std::string Subject() const;
  absl::string_view Expected() const;
  // Returns true if it is the tensor's first such member.
  bool AddMember(Place member) {
    const bool is_first = !members_.test(static_cast<size_t>(member));
    members_.set(static_cast<size_t>(member));
    return is_first;
  }
  bool BeginTensor(std::string& name);
  bool BeginMember(absl::string_view name);
  bool FinishTensor();

  Header header_;
  absl::Status status_;
  absl::flat_hash_set<std::string> names_;
  Place place_ = Place::kStart;
  bool in_array_ = false;
  bool has_metadata_ = false;
  std::string metadata_key_;
  // Fields of the tensor that is being read.
  TensorInfo tensor_;
  std::vector<int64_t> offsets_;
  std::bitset<kPlaces> members_;
};

std::string HeaderReader::Subject() const {
  if (place_ == Place::kStart || place_ == Place::kTensors || place_ == Place::kEnd) return "header: ";
  if (place_ == Place::kMetadata || place_ == Place::kMetadataText) return absl::StrCat(kMetadataName, ": ");
  return absl::StrCat("tensor ", NameText(tensor_.name), ": ");
}

absl::string_view HeaderReader::Expected() const {
  switch (place_) {
    case Place::kStart:
      return "an object of tensors";
    case Place::kTensors:
      return "a name";
    case Place::kMetadata:
      return "an object of texts";
    case Place::kMetadataText:
      return "a text";
    case Place::kTensor:
      return "an object of dtype, shape and data_offsets";
    case Place::kDtype:
      return "the name of a dtype";
    case Place::kShape:
      return "a shape of numbers 0 <= n < 2^63";
    case Place::kOffsets:
      return "two data_offsets 0 <= n < 2^63";
    case Place::kEnd:
      break;
  }
  return "the end";
}

bool HeaderReader::number_unsigned(uint64_t value) {
  if (!in_array_ || value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Unexpected(absl::StrCat(value));
  }
  std::vector<int64_t>& numbers = place_ == Place::kShape ? tensor_.shape : offsets_;
  numbers.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(std::string& text) {
  if (place_ == Place::kMetadataText) {
    header_.metadata.emplace(std::move(metadata_key_), std::move(text));
    place_ = Place::kMetadata;
    return true;
  }
  const auto described = [&] { return absl::StrCat("\"", NameText(text), "\""); };
  if (place_ != Place::kDtype) return Unexpected(described());
  const std::optional<Dtype> dtype = ParseDtype(text);
  if (!dtype.has_value()) return Refuse(absl::StrCat("unknown dtype ", described()));
  tensor_.dtype = *dtype;
  place_ = Place::kTensor;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kTensors;
    return true;
  }
  // A tensor's object, or the metadata's object, may begin once; members_ and has_metadata_ record whether it has.
  const bool begins = (place_ == Place::kTensor && AddMember(Place::kTensor)) ||
                      (place_ == Place::kMetadata && !std::exchange(has_metadata_, true));
  return begins || Unexpected("an object");
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTensors) {
    place_ = Place::kEnd;
    return true;
  }
  if (place_ == Place::kTensor && !FinishTensor()) return false;
  place_ = Place::kTensors;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if ((place_ != Place::kShape && place_ != Place::kOffsets) || in_array_) return Unexpected("an array");
  in_array_ = true;
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::kOffsets && offsets_.size() != 2) return Unexpected(absl::StrCat(offsets_.size()));
  in_array_ = false;
  place_ = Place::kTensor;
  return true;
}

bool HeaderReader::key(std::string& name) {
  if (place_ == Place::kTensors) return BeginTensor(name);
  if (place_ == Place::kTensor) return BeginMember(name);
  if (header_.metadata.count(name) != 0) {
    return Refuse(absl::StrCat("duplicate key ", NameText(name)));
  }
  metadata_key_ = std::move(name);
  place_ = Place::kMetadataText;
  return true;
}

bool HeaderReader::BeginTensor(std::string& name) {
  if (!names_.insert(name).second) {
    return Refuse(absl::StrCat("duplicate name ", NameText(name)));
  }
  if (name == kMetadataName) {
    place_ = Place::kMetadata;
    return true;
  }
  tensor_ = {};
  tensor_.name = std::move(name);
  offsets_.clear();
  members_.reset();
  place_ = Place::kTensor;
  return true;
}

bool HeaderReader::BeginMember(absl::string_view name) {
  Place member = Place::kTensor;
  if (name == "dtype") member = Place::kDtype;
  if (name == "shape") member = Place::kShape;
  if (name == "data_offsets") member = Place::kOffsets;
  if (member == Place::kTensor) return Unexpected(absl::StrCat("a member ", NameText(name)));
  if (!AddMember(member)) return Refuse(absl::StrCat("duplicate ", name));
  place_ = member;
  return true;
}

bool HeaderReader::FinishTensor() {
  for (const auto& [member, name] :
       {std::pair(Place::kDtype, "dtype"), {Place::kShape, "shape"}, {Place::kOffsets, "data_offsets"}}) {
    if (!members_.test(static_cast<size_t>(member))) return Refuse(absl::StrCat(name, " is missing"));
  }
  const auto shape = [this] {
    return absl::StrCat(DtypeName(tensor_.dtype), " [", NameText(absl::StrJoin(tensor_.shape, ", ")), "]");
  };
  const std::optional<int64_t> size_bytes = TensorBytes(tensor_.dtype, tensor_.shape);
  if (!size_bytes.has_value()) return Refuse(absl::StrCat("want a size of whole bytes below 2^60, got ", shape()));
  const int64_t begin = offsets_[0];
  const int64_t end = offsets_[1];
  if (end < begin || end - begin != *size_bytes) {
    return Refuse(absl::StrCat("want ", *size_bytes, " bytes of data for ", shape(), ", got data_offsets [", begin,
                               ", ", end, "]"));
  }
  tensor_.offset_bytes = begin;
  tensor_.size_bytes = *size_bytes;
  header_.tensors.push_back(std::move(tensor_));
  return true;
}

// Sorts tensors in the order of their data, which must fill the file.
absl::Status ArrangeData(int64_t data_bytes, std::vector<TensorInfo>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset_bytes, a.size_bytes) < std::tie(b.offset_bytes, b.size_bytes);
  });
  int64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset_bytes != end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", NameText(tensor.name), ": want data from byte ", end, " on, where the tensor before it ends, got ",
          tensor.offset_bytes < end ? "data that overlap them from byte " : "a hole up to byte ", tensor.offset_bytes));
    }
    end += tensor.size_bytes;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("want ", end, " bytes of data after the header, got ", data_bytes));
}

}  // namespace

absl::StatusOr<Header> ParseHeader(absl::string_view json, int64_t data_bytes) {
  // The parser would accept spaces and a byte order mark before the text, and anything after a zero.
  if (json.empty() || json[0] != '{') return absl::InvalidArgumentError("header: want { as its first byte");
  if (absl::StrContains(json, '\0')) return absl::InvalidArgumentError("header: want JSON, got a zero byte");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) return reader.status();
  Header header = reader.Take();
  if (absl::Status status = ArrangeData(data_bytes, header.tensors); !status.ok()) return status;
  return header;
}

std::string SerializeHeader(const Header& header, int64_t least_bytes) {
  // Written member by member: an ordered_json searches all members whenever one is added.
  std::string text = "{";
  const auto begin_member = [&text](absl::string_view name) {
    absl::StrAppend(&text, text.size() == 1 ? "" : ",", JsonText(name), ":");
  };
  if (!header.metadata.empty()) {
    begin_member(kMetadataName);
    text += "{";
    for (const auto& [key, value] : header.metadata) {
      absl::StrAppend(&text, text.back() == '{' ? "" : ",", JsonText(key), ":", JsonText(value));
    }
    text += "}";
  }
  for (const TensorInfo& tensor : header.tensors) {
    begin_member(tensor.name);
    absl::StrAppend(&text, "{\"dtype\":\"", DtypeName(tensor.dtype), "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", tensor.offset_bytes, ",", tensor.offset_bytes + tensor.size_bytes, "]}");
  }
  text += "}";
  const int64_t bytes = std::max(static_cast<int64_t>(text.size()), least_bytes - kLengthBytes);
  text.resize((bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  for (int i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

absl::StatusOr<int64_t> DataBegin(absl::string_view length) {
  uint64_t bytes = 0;
  for (int i = 0; i < kLengthBytes; ++i) bytes |= uint64_t{static_cast<uint8_t>(length[i])} << (8 * i);
  if (bytes <= static_cast<uint64_t>(kMaxHeaderBytes)) return kLengthBytes + static_cast<int64_t>(bytes);
  return absl::InvalidArgumentError(absl::StrCat("want a header of at most ", kMaxHeaderBytes, " bytes, got ", bytes));
}

std::string NameText(absl::string_view name) { return absl::CHexEscape(name.substr(0, kMaxNameText)); }

}  // namespace paramshard::safetensors
