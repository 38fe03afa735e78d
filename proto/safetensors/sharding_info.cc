#include "proto/safetensors/sharding_info.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
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

// The offsets of one tensor. None for anything else.
std::optional<std::vector<int64_t>> ParseOffsets(const json& entry) {
  const auto offsets = entry.is_object() ? entry.find(kSavedOffsets) : entry.end();
  if (offsets == entry.end() || !offsets->is_array()) return std::nullopt;
  std::vector<int64_t> parsed;
  for (const json& offset : *offsets) {
    if (!offset.is_number_unsigned() || offset.get<uint64_t>() > kMaxOffset) return std::nullopt;
    parsed.push_back(static_cast<int64_t>(offset.get<uint64_t>()));
  }
  return parsed;
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
    return absl::InvalidArgumentError(absl::StrCat(kShardingInfoKey, " in the header's metadata expected, got none"));
  }
  absl::flat_hash_map<std::string, std::optional<std::vector<int64_t>>> entries;
  const json info = ParseShallowJson(text->second, kInfoDepth, [&](const JsonMember& member) {
    if (member.depth == 1) entries[member.name] = ParseOffsets(member.value);
    return member.depth == 1;
  });
  if (!info.is_object() || entries.size() != header.tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kShardingInfoKey, ": an object with each of ", header.tensors.size(), " tensors expected"));
  }
  std::vector<std::vector<int64_t>> offsets;
  for (const TensorInfo& tensor : header.tensors) {
    const auto entry = entries.find(tensor.name);
    if (entry == entries.end() || !entry->second.has_value() || entry->second->size() != tensor.shape.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", NameText(tensor.name), ": ", tensor.shape.size(), " ",
                                                     kSavedOffsets, " in ", kShardingInfoKey, " expected"));
    }
    offsets.push_back(*std::move(entry->second));
  }
  return offsets;
}

}  // namespace paramshard::safetensors
