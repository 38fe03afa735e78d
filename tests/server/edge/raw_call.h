// A call of any method by its name: bytes in, bytes out.
#ifndef PARAMSHARD_TESTS_SERVER_EDGE_RAW_CALL_H_
#define PARAMSHARD_TESTS_SERVER_EDGE_RAW_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace paramshard::server {

// `method` as "/package.Service/Method". One message and a half-close; the first message that comes back.
absl::StatusOr<std::string> CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                                    const std::string& request, grpc::ClientContext* context);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_EDGE_RAW_CALL_H_
