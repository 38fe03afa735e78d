// Conversion of a gRPC status to an absl status.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_
#define PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"

namespace paramshard::internal {

// The codes have the same numbers by design of both libraries. A server that shuts down cancels new calls without a
// message; calls that the daemon cancels have one.
inline absl::Status FromGrpc(const grpc::Status& status) {
  const bool says_nothing =
      status.error_message().empty() || absl::EqualsIgnoreCase(status.error_message(), "cancelled");
  if (status.error_code() == grpc::StatusCode::CANCELLED && says_nothing) {
    return absl::UnavailableError(
        "the daemon cancelled the call without a message: it shuts down, or its answer was not read in time");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_
