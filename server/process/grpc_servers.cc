#include "server/process/grpc_servers.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/time/time.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"
#include "server/base/descriptor_limit.h"
#include "server/base/grpc_deadline.h"
#include "server/base/keepalive.h"

namespace paramshard::server {
namespace {

// Largest number of concurrent streams of a connection, and of unread bytes of a stream.
constexpr int kMaxStreamsOfConnection = 1024;
constexpr int kStreamWindowBytes = 64 << 10;
// Timeout of TLS and the first bytes of HTTP/2: a silent client has no certificate to show.
constexpr int kHandshakeMilliseconds = 10'000;
// Largest memory of gRPC for each user: messages that no worker has taken yet, connections and calls.
constexpr size_t kMaxGrpcBytes = size_t{1} << 30;
// Time after drain_timeout for handlers to notice the end of their streams.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);

// Rejects calls with compressed messages by their metadata: the compressed size does not limit the inflated size. Keeps
// flow-control windows small, so that unrequested data fills the socket and not the daemon.
void LimitWhatIsReceived(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  for (int algorithm = GRPC_COMPRESS_NONE + 1; algorithm < GRPC_COMPRESS_ALGORITHMS_COUNT; ++algorithm) {
    builder.SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(algorithm), false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
}

// At its memory limit gRPC cancels calls and accepts no connections, until memory is free again.
void LimitResources(grpc::ServerBuilder& builder, int threads) {
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(threads);
  quota.Resize(kMaxGrpcBytes);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
}

}  // namespace

absl::StatusOr<GrpcServers> GrpcServers::Start(Options options) {
  GrpcServers started;
  started.acceptor_ = std::make_unique<ConnectionAcceptor>(
      std::move(options.sockets),
      ConnectionAcceptor::Options{.max_connections = CompanionConnectionsWithin(DescriptorLimit()),
                                  .peers = options.connections});
  for (const UserQuota::User user : options.users) {
    grpc::ServerBuilder builder;
    LimitWhatIsReceived(builder);
    LimitResources(builder, options.max_threads);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
    if (options.pings == Pings::kAreAnswered) SetKeepalive(builder);
    if (!user.has_value() && options.connections != nullptr) {
      builder.experimental().SetInterceptorCreators(PeerConnections::Interceptors(options.connections));
    }
    started.acceptor_->AddServer(user, builder,
                                 user.has_value() ? grpc::InsecureServerCredentials() : options.credentials);
    for (grpc::Service* service : options.services) builder.RegisterService(service);
    started.servers_.push_back(builder.BuildAndStart());
    if (started.servers_.back() == nullptr) {
      started.servers_.pop_back();
      return absl::InternalError("failed to start a gRPC server");
    }
  }
  RETURN_IF_ERROR(started.acceptor_->Start());
  return started;
}

void GrpcServers::SetHealth(const std::string& service, bool serving) const {
  for (const auto& server : servers_) server->GetHealthCheckService()->SetServingStatus(service, serving);
}

void GrpcServers::SetHealth(bool serving) const {
  for (const auto& server : servers_) server->GetHealthCheckService()->SetServingStatus(serving);
}

void GrpcServers::Stop() {
  acceptor_.reset();
  const auto deadline = GrpcDeadline(kShutdownGrace);
  for (const auto& server : servers_) server->Shutdown(deadline);
}

}  // namespace paramshard::server
