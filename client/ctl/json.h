// The daemon's answers as JSON documents for programs, with the protos' JSON names.
//
// As protobuf's mapping has it: 64-bit numbers are strings, NaN and infinities too. Fields with default values are
// there. INTERNAL for a message that has no JSON, such as one with a time beyond the year 9999.
#ifndef PARAMSHARD_CLIENT_CTL_JSON_H_
#define PARAMSHARD_CLIENT_CTL_JSON_H_

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {

// An indented document that ends with a line feed.
absl::StatusOr<std::string> JsonText(const google::protobuf::Message& message);

// {"extents": [ExtentVerification ...], "summary": VerifySummary}: the stream of VerifyModel as one document. `extents`
// is left out when null.
absl::StatusOr<std::string> VerificationJsonText(const std::vector<v1::ExtentVerification>* extents,
                                                 const v1::VerifySummary& summary);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_JSON_H_
