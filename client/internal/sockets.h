// Sockets of a daemon on this machine.
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
  std::string companion;
};

// `directory`, else $PARAMSHARD_SOCKET_DIR, else $XDG_RUNTIME_DIR/paramshard, else
// /tmp/paramshard-<uid>, which must pass CheckOwner: any user may have created it.
absl::StatusOr<SocketPaths> FindSockets(const std::string& directory);

// Returns true if a companion socket's file exists, with or without a listener.
bool HasSocket(const SocketPaths& paths);

// OK when `directory` belongs to the user or to root: no other user can listen in it. Else PERMISSION_DENIED, or
// UNAVAILABLE when there is none.
absl::Status CheckOwner(const std::string& directory, uid_t user);

// Opens a separate channel to the daemon's gRPC socket. UNAVAILABLE when no daemon answers within
// `timeout`.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const SocketPaths& paths, absl::Duration timeout);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SOCKETS_H_
