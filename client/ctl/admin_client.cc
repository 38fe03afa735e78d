#include "client/ctl/admin_client.h"

#include <utility>

#include "absl/time/clock.h"
#include "client/internal/grpc_status.h"
#include "client/internal/sockets.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/status_macros.h"

namespace paramshard::ctl {

absl::StatusOr<AdminClient> AdminClient::Connect(const Options& options) {
  if (options.remote.has_value()) {
    ASSIGN_OR_RETURN(const auto channel,
                     paramshard::internal::OpenRemoteChannel(*options.remote, options.connect_timeout));
    return AdminClient(options, std::nullopt, channel);
  }
  ASSIGN_OR_RETURN(const auto paths, paramshard::internal::FindSockets(options.socket_dir));
  ASSIGN_OR_RETURN(auto companion, paramshard::internal::Companion::Connect(paths.companion, options.connect_timeout));
  ASSIGN_OR_RETURN(const auto channel, paramshard::internal::OpenChannel(paths, options.connect_timeout));
  return AdminClient(options, std::move(companion), channel);
}

AdminClient::AdminClient(Options options, std::optional<paramshard::internal::Companion> companion,
                         const std::shared_ptr<grpc::Channel>& channel)
    : options_(std::move(options)),
      companion_(std::move(companion)),
      stub_(v1::AdminService::NewStub(channel)),
      trainer_stub_(v1::TrainerService::NewStub(channel)) {}

std::unique_ptr<grpc::ClientContext> AdminClient::NewContext(RpcLength length) const {
  const absl::Duration timeout = length == RpcLength::kShort ? options_.timeout : options_.stream_timeout;
  auto context = std::make_unique<grpc::ClientContext>();
  if (companion_.has_value()) context->AddMetadata(wire::kTokenMetadata, companion_->token());
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return context;
}

absl::Status AdminClient::Converted(const grpc::Status& status) { return paramshard::internal::FromGrpc(status); }

}  // namespace paramshard::ctl
