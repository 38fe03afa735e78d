#include "server/world/coordinator_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "server/base/keepalive.h"
#include "server/world/remote_cluster.h"

namespace paramshard::server {
namespace {

constexpr int kFirstPauseMilliseconds = 20;
constexpr int kLongestPauseMilliseconds = 500;
// Timeout of a connection with its handshake: a node 0 to which many daemons come back at once has much to compute.
constexpr int kConnectMilliseconds = 5000;

grpc::ChannelArguments ArgumentsOfLink() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstPauseMilliseconds);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestPauseMilliseconds);
  // A daemon reaches its node 0 over a connection of its own, shared with nothing else in the process.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  SetKeepalive(arguments);
  return arguments;
}

}  // namespace

std::shared_ptr<CoordinatorLink> MakeCoordinatorLink(const RemoteOptions& options) {
  auto link = std::make_shared<CoordinatorLink>();
  // Read before the credentials, which read the files again: a certificate that comes in between differs from this one.
  if (options.own_certificate != nullptr) {
    const absl::StatusOr<tls::Certificate> certificate = options.own_certificate();
    if (certificate.ok()) link->certificate = certificate->fingerprint;
  }
  link->channel = grpc::CreateCustomChannel(
      options.coordinator_address,
      options.make_credentials == nullptr ? grpc::InsecureChannelCredentials() : options.make_credentials(),
      ArgumentsOfLink());
  link->stub = v1::ClusterService::NewStub(link->channel);
  return link;
}

}  // namespace paramshard::server
