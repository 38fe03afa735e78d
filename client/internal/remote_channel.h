// gRPC channel to a daemon on another machine, for tools: trainers need memory of their own machine's daemon.
#ifndef PARAMSHARD_CLIENT_INTERNAL_REMOTE_CHANNEL_H_
#define PARAMSHARD_CLIENT_INTERNAL_REMOTE_CHANNEL_H_

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/tls/files.h"
#include "common/tls/identity.h"

namespace paramshard::internal {

struct RemoteDaemon {
  std::string address;  // HOST:PORT of its --listen
  tls::Files files;     // the caller's certificate, its key, and the trusted authorities
  std::vector<tls::RolePattern> roles;
};

// INVALID_ARGUMENT unless `address` is HOST:PORT.
absl::Status CheckRemoteAddress(absl::string_view address);

// Opens a channel to a daemon with the certificate of a node of the same world, or to a mirror with one of role reader. Errors of tls::IdentityRules::Load;
// INVALID_ARGUMENT for a malformed address; UNAVAILABLE when another program listens there, at once, or when there is
// no connection within the timeout: with the error of the system or TLS, and advice.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRemoteChannel(const RemoteDaemon& daemon, absl::Duration timeout);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_REMOTE_CHANNEL_H_
