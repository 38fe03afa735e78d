#include "client/internal/remote_channel.h"

#include <grpcpp/create_channel.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/internal/deadline.h"
#include "kernels/base/status_macros.h"
#include "proto/tls/credentials.h"

namespace paramshard::internal {
namespace {

// Whom the last handshake has refused: gRPC does not say why a connection is not made.
struct Refusal {
  absl::Mutex mu;
  absl::Status why;  // guarded by mu
};

absl::Status CheckIsDaemon(const tls::IdentityRules& rules, const std::vector<std::string>& uris) {
  ASSIGN_OR_RETURN(const tls::Identity peer, rules.Identify(uris));
  if (peer.role == tls::Role::kNode) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate of a node expected, got that of ", tls::IdentityText(peer)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRemoteChannel(const RemoteDaemon& daemon, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const tls::Certificate own, tls::CheckFiles(daemon.files, absl::Now()));
  const absl::StatusOr<tls::IdentityRules> rules = tls::IdentityRules::Create(own.uris, daemon.roles);
  if (!rules.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", daemon.files.cert, ": ", rules.status().message()));
  }
  const auto refusal = std::make_shared<Refusal>();
  const auto check = [rules = *rules, refusal](const std::vector<std::string>& uris) {
    absl::MutexLock lock(&refusal->mu);
    return refusal->why = CheckIsDaemon(rules, uris);
  };
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(daemon.address, tls::MakeChannelCredentials(daemon.files, check), arguments);
  if (channel->WaitForConnected(Deadline::After(timeout).ToGrpc())) return channel;
  absl::MutexLock lock(&refusal->mu);
  return absl::UnavailableError(absl::StrCat(
      "connect: a daemon expected at ", daemon.address, ", no connection within ", absl::FormatDuration(timeout), "; ",
      refusal->why.ok() ? "if one listens there, its log says whose certificate it has refused"
                        : refusal->why.message()));
}

}  // namespace paramshard::internal
