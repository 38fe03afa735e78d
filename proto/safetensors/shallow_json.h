// Reads JSON texts whose objects and lists nest a few levels deep, in time that grows with the text.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_
#define PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace paramshard::safetensors {

// Returns the value of a JSON text without what lies inside more than `max_depth` objects and lists, which takes no
// memory: the last of these are empty. A discarded value for any other text. `on_key` hears each key that is kept, in the order of the text, with
// the number of objects and lists around it.
//
// nlohmann's own filter looks through an object's members at the end of each of them: with 100,000 it takes minutes.
nlohmann::json ParseShallowJson(
    absl::string_view text, int max_depth,
    absl::FunctionRef<void(int depth, const std::string& key)> on_key = [](int, const std::string&) {});

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_PROTO_SAFETENSORS_SHALLOW_JSON_H_
