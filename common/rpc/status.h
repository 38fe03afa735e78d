// Conversion of statuses between absl and protobuf.
#ifndef PARAMSHARD_COMMON_RPC_STATUS_H_
#define PARAMSHARD_COMMON_RPC_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "paramshard/v1/status.pb.h"

namespace paramshard {

inline v1::Status StatusToProto(const absl::Status& status) {
  v1::Status message;
  message.set_code(static_cast<int>(status.code()));
  message.set_text(std::string(status.message()));
  return message;
}

// Returns the status of a received reason. It is never OK: OK and codes that do not exist become UNKNOWN.
inline absl::Status Reason(int code, absl::string_view text) {
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, text);
}
inline absl::Status ReasonFromProto(const v1::Status& message) { return Reason(message.code(), message.text()); }

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_RPC_STATUS_H_
