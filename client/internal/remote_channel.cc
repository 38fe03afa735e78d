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

bool IsRefused(Refusal& refusal) {
  absl::MutexLock lock(&refusal.mu);
  return !refusal.why.ok();
}

// False at the deadline, or when whoever listens there is somebody else.
bool Connect(grpc::Channel& channel, Refusal& refusal, const Deadline& deadline) {
  for (auto state = channel.GetState(true); state != GRPC_CHANNEL_READY; state = channel.GetState(true)) {
    if (IsRefused(refusal) || !channel.WaitForStateChange(state, deadline.ToGrpc())) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRemoteChannel(const RemoteDaemon& daemon, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const tls::IdentityRules rules, tls::IdentityRules::Load(daemon.files, daemon.roles, absl::Now()));
  const auto refusal = std::make_shared<Refusal>();
  const auto check = [rules, refusal](const std::vector<std::string>& uris) {
    const absl::StatusOr<tls::Identity> peer = rules.Identify(uris);
    absl::MutexLock lock(&refusal->mu);
    return refusal->why = peer.ok() ? CheckIsNode(*peer) : peer.status();
  };
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(daemon.address, tls::MakeChannelCredentials(daemon.files, check), arguments);
  if (Connect(*channel, *refusal, Deadline::After(timeout))) return channel;
  absl::MutexLock lock(&refusal->mu);
  return absl::UnavailableError(absl::StrCat(
      "connect: a daemon expected at ", daemon.address, ", no connection within ", absl::FormatDuration(timeout), "; ",
      refusal->why.ok() ? "if one listens there, its log says whose certificate it has refused"
                        : refusal->why.message()));
}

}  // namespace paramshard::internal
