// Where a daemon listens.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SOCKETS_H_
#define PARAMSHARD_CLIENT_INTERNAL_SOCKETS_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/companion.h"

namespace paramshard::internal {

struct SocketPaths {
  std::string directory;
  std::string grpc;
  std::string handoff;
};

// `directory`, else $PARAMSHARD_SOCKET_DIR, else $XDG_RUNTIME_DIR/paramshard, else
// /tmp/paramshard-<uid>, which must pass CheckOwner: anybody may have created it.
absl::StatusOr<SocketPaths> FindSockets(const std::string& directory);

// Whether a companion socket's file is there, though nobody may listen on it.
bool HasSocket(const SocketPaths& paths);

// OK when `directory` belongs to the user or to root, who alone decide who listens in it. Else PERMISSION_DENIED, or
// UNAVAILABLE when there is none.
absl::Status CheckOwner(const std::string& directory, uid_t user);

// A channel of its own to the daemon's gRPC socket. UNAVAILABLE when nobody answers within
// `timeout`.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const SocketPaths& paths, absl::Duration timeout);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SOCKETS_H_
