// The daemon's answers as JSON documents for programs, with the protos' JSON names.
//
// Follows protobuf's mapping: 64-bit numbers are strings, NaN and infinities too. Fields with default values are
// written. INTERNAL for a message that has no JSON, such as a time beyond the year 9999.
#ifndef PARAMSHARD_CLIENT_CTL_JSON_H_
#define PARAMSHARD_CLIENT_CTL_JSON_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {

absl::StatusOr<nlohmann::ordered_json> ToJson(const google::protobuf::Message& message);

// Returns an indented document that ends with a line feed.
std::string JsonText(const nlohmann::ordered_json& json);
absl::StatusOr<std::string> JsonText(const google::protobuf::Message& message);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_JSON_H_
