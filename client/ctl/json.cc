#include "client/ctl/json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (status.ok() && !json.is_discarded()) return json;
  return absl::InternalError(absl::StrCat(message.GetTypeName(), ": a message with a JSON form expected, got: ",
                                          absl::string_view(status.message().data(), status.message().size())));
}

std::string Document(const ordered_json& json) {
  return json.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::StatusOr<std::string> JsonText(const google::protobuf::Message& message) {
  ASSIGN_OR_RETURN(const ordered_json json, ToJson(message));
  return Document(json);
}

absl::StatusOr<std::string> VerificationJsonText(const std::vector<v1::ExtentVerification>* extents,
                                                 const v1::VerifySummary& summary) {
  ordered_json document = ordered_json::object();
  if (extents != nullptr) {
    ordered_json list = ordered_json::array();
    for (const v1::ExtentVerification& extent : *extents) {
      ASSIGN_OR_RETURN(ordered_json entry, ToJson(extent));
      list.push_back(std::move(entry));
    }
    document["extents"] = std::move(list);
  }
  ASSIGN_OR_RETURN(document["summary"], ToJson(summary));
  return Document(document);
}

}  // namespace paramshard::ctl
