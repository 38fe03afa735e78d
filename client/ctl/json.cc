#include "client/ctl/json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"

namespace paramshard::ctl {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (status.ok() && !json.is_discarded()) return json;
  return absl::InternalError(absl::StrCat(message.GetTypeName(), ": cannot be written as JSON: ",
                                          absl::string_view(status.message().data(), status.message().size())));
}

std::string JsonText(const ordered_json& json) {
  return json.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::string> JsonText(const google::protobuf::Message& message) {
  ASSIGN_OR_RETURN(const ordered_json json, ToJson(message));
  return JsonText(json);
}

}  // namespace paramshard::ctl
