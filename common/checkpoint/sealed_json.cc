#include "common/checkpoint/sealed_json.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "kernels/base/check.h"

namespace paramshard::checkpoint {
namespace {

using nlohmann::json;

constexpr absl::string_view kBeforeHash = " \"hash\": \"";
constexpr absl::string_view kAfterHash = "\"\n}\n";
constexpr absl::string_view kNull = "null";
constexpr absl::string_view kObjectEnd = "\n}";
constexpr size_t kHashDigits = 32;
// An object of lists of objects of texts.
constexpr int kMaxDepth = 3;

}  // namespace

std::string SealJson(const json& object, const std::map<std::string, std::string>& texts) {
  PARAMSHARD_CHECK(object.is_object() && !object.empty());
  std::string text = object.dump(1, ' ', false, json::error_handler_t::replace);
  for (const auto& [name, member] : texts) {
    // Texts have no line breaks: a line that begins so is a member of the object.
    const std::string begin = absl::StrCat("\n ", safetensors::JsonText(name), ": ");
    const size_t at = text.find(absl::StrCat(begin, kNull));
    PARAMSHARD_CHECK(at != text.npos);
    text.replace(at + begin.size(), kNull.size(), member);
  }
  text.resize(text.size() - kObjectEnd.size());
  absl::StrAppend(&text, ",\n", kBeforeHash);
  absl::StrAppend(&text, HashText(HashBytes(text)), kAfterHash);
  return text;
}

absl::StatusOr<json> UnsealJson(absl::string_view text, absl::FunctionRef<bool(const safetensors::JsonMember&)> take) {
  const absl::string_view whole = text;
  if (!absl::EndsWith(text, kAfterHash) || text.size() < kAfterHash.size() + kHashDigits + kBeforeHash.size()) {
    return absl::DataLossError("does not end with its hash");
  }
  text.remove_suffix(kAfterHash.size());
  const std::optional<absl::uint128> hash = ParseHash(text.substr(text.size() - kHashDigits));
  text.remove_suffix(kHashDigits);
  if (!absl::EndsWith(text, kBeforeHash) || !hash.has_value()) {
    return absl::DataLossError("does not end with its hash");
  }
  if (HashBytes(text) != *hash) {
    return absl::DataLossError(
        absl::StrCat("want hash ", HashText(*hash), " of the text, got ", HashText(HashBytes(text))));
  }
  json object = safetensors::ParseShallowJson(whole, kMaxDepth, take);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return object;
}

const json* JsonObject::Find(const char* name) const {
  if (!json_.is_object()) return nullptr;
  const auto found = json_.find(name);
  return found == json_.end() ? nullptr : &*found;
}

absl::Status JsonObject::Unexpected(absl::string_view name, absl::string_view expected) const {
  return absl::InvalidArgumentError(absl::StrCat(where_, where_.empty() ? "" : ": ", name, ": want ", expected));
}

absl::StatusOr<int64_t> JsonObject::Number(const char* name, int64_t min, int64_t max) const {
  const json* const value = Find(name);
  // Numbers above the largest int64 are unsigned to the parser, and would wrap.
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (fits && value->get<int64_t>() >= min && value->get<int64_t>() <= max) return value->get<int64_t>();
  return Unexpected(name, absl::StrCat("a number from ", min, " to ", max));
}

absl::StatusOr<std::string> JsonObject::Text(const char* name) const {
  const json* const value = Find(name);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  return Unexpected(name, "a text");
}

absl::StatusOr<absl::uint128> JsonObject::Hash(const char* name) const {
  const json* const value = Find(name);
  const std::optional<absl::uint128> hash =
      value != nullptr && value->is_string() ? ParseHash(value->get_ref<const std::string&>()) : std::nullopt;
  if (hash.has_value()) return *hash;
  return Unexpected(name, "32 hexadecimal digits");
}

absl::StatusOr<const json*> JsonObject::Object(const char* name) const {
  const json* const value = Find(name);
  if (value != nullptr && value->is_object()) return value;
  return Unexpected(name, "an object");
}

absl::StatusOr<const json*> JsonObject::Array(const char* name) const {
  const json* const value = Find(name);
  if (value != nullptr && value->is_array()) return value;
  return Unexpected(name, "a list");
}

}  // namespace paramshard::checkpoint
