// Reads JSON texts whose objects and lists nest a few levels deep, in time that grows with the text, and writes the
// texts in them.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_
#define PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_

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

// Returns the value of a JSON text without what lies inside more than `max_depth` objects and lists, which takes no
// memory: the last of these are empty. A discarded value for any other text. Each member that is kept is first given to
// `take`, in the order in which they end: where it returns true the member is its, and left out. So an object of a
// million members needs no memory for more than one of them.
//
// nlohmann's own filter looks through an object's members at the end of each of them: with 100,000 it takes minutes.
nlohmann::json ParseShallowJson(
    absl::string_view text, int max_depth,
    absl::FunctionRef<bool(const JsonMember& member)> take = [](const JsonMember&) { return false; });

// Returns the text as JSON, in quotes. What is no UTF-8 is replaced.
std::string JsonText(absl::string_view text);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_
