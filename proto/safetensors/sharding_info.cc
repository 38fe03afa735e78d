#include "proto/safetensors/sharding_info.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "proto/safetensors/shallow_json.h"

namespace paramshard::safetensors {
namespace {

using nlohmann::json;

constexpr char kSavedOffsets[] = "saved_offsets";
// An object of objects of lists of numbers.
constexpr int kInfoDepth = 3;
// So that ends of parts fit.
constexpr uint64_t kMaxOffset = uint64_t{1} << 62;

absl::StatusOr<std::vector<int64_t>> ParseOffsets(const json& info, const TensorInfo& tensor) {
  static const json kNone;
  const auto found = info.find(tensor.name);
  const bool has_offsets = found != info.end() && found->is_object() && found->contains(kSavedOffsets);
  const json& offsets = has_offsets ? found->at(kSavedOffsets) : kNone;
  std::vector<int64_t> parsed;
  for (const json& offset : offsets) {
    if (!offset.is_number_unsigned() || offset.get<uint64_t>() > kMaxOffset) break;
    parsed.push_back(static_cast<int64_t>(offset.get<uint64_t>()));
  }
  if (offsets.is_array() && parsed.size() == offsets.size() && parsed.size() == tensor.shape.size()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat("tensor ", NameText(tensor.name), ": ", tensor.shape.size(), " ",
                                                 kSavedOffsets, " in ", kShardingInfoKey, " expected"));
}

}  // namespace

std::string SerializeShardingInfo(const SavedOffsets& offsets) {
  std::string text;
  for (const auto& [name, saved] : offsets) {
    absl::StrAppend(&text, text.empty() ? "{" : ",", json(name).dump(-1, ' ', false, json::error_handler_t::replace),
                    ":{\"", kSavedOffsets, "\":[", absl::StrJoin(saved, ","), "]}");
  }
  return text.empty() ? "{}" : text + "}";
}

absl::StatusOr<SavedOffsets> ParseShardingInfo(const Header& header) {
  const auto text = header.metadata.find(kShardingInfoKey);
  if (text == header.metadata.end()) {
    return absl::InvalidArgumentError(absl::StrCat(kShardingInfoKey, " in the header's metadata expected, got none"));
  }
  const json info = ParseShallowJson(text->second, kInfoDepth);
  if (!info.is_object() || info.size() != header.tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kShardingInfoKey, ": an object with each of ", header.tensors.size(), " tensors expected"));
  }
  SavedOffsets offsets;
  for (const TensorInfo& tensor : header.tensors) {
    absl::StatusOr<std::vector<int64_t>> parsed = ParseOffsets(info, tensor);
    if (!parsed.ok()) return parsed.status();
    offsets.emplace(tensor.name, *std::move(parsed));
  }
  return offsets;
}

}  // namespace paramshard::safetensors
