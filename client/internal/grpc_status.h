// The one place where a gRPC status becomes an absl status.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_
#define PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace paramshard::internal {

// The codes have the same numbers by design of both libraries.
inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GRPC_STATUS_H_
