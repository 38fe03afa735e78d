// The one place where absl::Status becomes grpc::Status. The codes are the same numbers.
#ifndef PARAMSHARD_SERVER_EDGE_GRPC_STATUS_H_
#define PARAMSHARD_SERVER_EDGE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace paramshard::server {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_GRPC_STATUS_H_
