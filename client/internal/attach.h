// Attaching to a model: from a spec to a running session.
#ifndef PARAMSHARD_CLIENT_INTERNAL_ATTACH_H_
#define PARAMSHARD_CLIENT_INTERNAL_ATTACH_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/internal/session.h"
#include "client/internal/sockets.h"

namespace paramshard::internal {

// Opens a companion connection for the session, attaches, waits until every rank is attached, and
// maps the memory. The model exists: its spec is the daemon's. Errors as the Session RPC says.
absl::StatusOr<std::shared_ptr<Session>> Attach(const std::shared_ptr<grpc::Channel>& channel, const SocketPaths& paths,
                                                const Client::Options& options, const std::string& model);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_ATTACH_H_
