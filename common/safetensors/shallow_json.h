// Parser of JSON texts whose objects and lists nest a few levels deep, in time linear in the text; and writer of JSON
// strings.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_SHALLOW_JSON_H_
#define PARAMSHARD_COMMON_SAFETENSORS_SHALLOW_JSON_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace paramshard::safetensors {

// A member of an object that has been read whole.
struct JsonMember {
  int depth;                  // number of objects and lists around it: 1 for members of the text's own object
  const std::string& object;  // name of the object that it is in; empty at depth 1 and for elements of lists
  std::string& name;
  nlohmann::json& value;
};

// Returns the value of a JSON text. Values inside more than `max_depth` objects and lists are dropped, take no memory,
// and leave their container empty. Returns a discarded value for any other text. Each member that is kept is first
// given to `take`, in the order in which members end: if it returns true, the member is left out. So an object of a
// million members needs memory for only one of them.
//
// nlohmann's own filter searches an object's members at the end of each of them: with 100,000 members it takes minutes.
nlohmann::json ParseShallowJson(
    absl::string_view text, int max_depth,
    absl::FunctionRef<bool(const JsonMember& member)> take = [](const JsonMember&) { return false; });

// Returns the text as a JSON string, in quotes. Bytes that are not UTF-8 are replaced.
std::string JsonText(absl::string_view text);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_SHALLOW_JSON_H_
