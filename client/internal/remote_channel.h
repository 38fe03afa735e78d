// A channel to a daemon on another machine, for tools: trainers need memory of their own machine's daemon.
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
#include "proto/tls/files.h"
#include "proto/tls/identity.h"

namespace paramshard::internal {

struct RemoteDaemon {
  std::string address;  // HOST:PORT of its --listen
  tls::Files files;     // with whose certificate the caller comes
  std::vector<tls::RolePattern> roles;
};

// INVALID_ARGUMENT it is no HOST:PORT.
absl::Status CheckRemoteAddress(absl::string_view address);

// A channel to whoever shows the certificate of a node of the same world. Errors of tls::IdentityRules::Load;
// INVALID_ARGUMENT the address is none; UNAVAILABLE somebody else listens there, at once; no such daemon within the
// timeout: what the system or TLS says, and what to look at.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRemoteChannel(const RemoteDaemon& daemon, absl::Duration timeout);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_REMOTE_CHANNEL_H_
