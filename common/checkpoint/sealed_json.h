// JSON texts that end with their own hash.
//
// A sealed text is an object whose last line but one is ` "hash": "<32 digits>"`; the digits are HashBytes of all bytes
// before them, and `"\n}\n` follows. So the hash is checked before the text is parsed.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_SEALED_JSON_H_
#define PARAMSHARD_COMMON_CHECKPOINT_SEALED_JSON_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/shallow_json.h"
#include "nlohmann/json.hpp"

namespace paramshard::checkpoint {

// Requires an object with a member and without one called "hash". Members that are null take their text from `texts`,
// by name, indented as the rest is: an object of many members takes less time and memory as text.
std::string SealJson(const nlohmann::json& object, const std::map<std::string, std::string>& texts = {});

// Returns the object that was sealed, without the members that `take` takes (ParseShallowJson). DATA_LOSS for a text
// that does not match its hash, before any member is taken; INVALID_ARGUMENT for a text that is not a JSON object.
// Values more than three levels deep are dropped.
absl::StatusOr<nlohmann::json> UnsealJson(
    absl::string_view text, absl::FunctionRef<bool(const safetensors::JsonMember& member)> take =
                                [](const safetensors::JsonMember&) { return false; });

// Reads members of an object; errors name the member: "files[2]: ...". A view: the object outlives it.
class JsonObject {
 public:
  // `where` names the object in messages; empty for the whole text.
  JsonObject(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool Has(const char* name) const { return json_.is_object() && json_.contains(name); }
  // INVALID_ARGUMENT for a member that is missing or of a different type.
  absl::StatusOr<int64_t> Number(const char* name, int64_t min, int64_t max) const;
  absl::StatusOr<std::string> Text(const char* name) const;
  absl::StatusOr<absl::uint128> Hash(const char* name) const;
  absl::StatusOr<const nlohmann::json*> Object(const char* name) const;
  absl::StatusOr<const nlohmann::json*> Array(const char* name) const;
  // Returns INVALID_ARGUMENT: "NAME: want EXPECTED".
  absl::Status Unexpected(absl::string_view name, absl::string_view expected) const;

 private:
  const nlohmann::json* Find(const char* name) const;

  const nlohmann::json& json_;
  std::string where_;
};

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_SEALED_JSON_H_
