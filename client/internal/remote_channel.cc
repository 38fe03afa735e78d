#include "client/internal/remote_channel.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/internal/deadline.h"
#include "common/tls/connect_advice.h"
#include "common/tls/credentials.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.grpc.pb.h"

namespace paramshard::internal {
namespace {

constexpr absl::Duration kQuestion = absl::Milliseconds(200);

// Reason of the last rejected handshake: gRPC does not say why a connection failed.
struct Refusal {
  std::string Text() {
    absl::MutexLock lock(&mu);
    return std::string(why.message());
  }

  absl::Mutex mu;
  absl::Status why;  // guarded by mu
};

bool IsRefused(Refusal& refusal) { return !refusal.Text().empty(); }

// Returns why there is no connection, from a call that does not wait for one.
std::string WhyNot(const std::shared_ptr<grpc::Channel>& channel, const tls::Files& files) {
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  context.set_deadline(Deadline::After(kQuestion).ToGrpc());
  v1::GetVersionResponse response;
  const std::string failure =
      v1::AdminService::NewStub(channel)->GetVersion(&context, v1::GetVersionRequest(), &response).error_message();
  const std::string advice = tls::ConnectAdvice(failure, files);
  return advice.empty() ? failure : absl::StrCat(failure, "; ", advice);
}

// Returns false at the deadline, or when the peer's certificate is rejected.
bool Connect(grpc::Channel& channel, Refusal& refusal, const Deadline& deadline) {
  for (auto state = channel.GetState(true); state != GRPC_CHANNEL_READY; state = channel.GetState(true)) {
    if (IsRefused(refusal) || !channel.WaitForStateChange(state, deadline.ToGrpc())) return false;
  }
  return true;
}

}  // namespace

absl::Status CheckRemoteAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool has_both = colon != absl::string_view::npos && colon > 0;
  if (has_both && absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port < 65536) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address: want HOST:PORT of a daemon, or [ADDRESS]:PORT of IPv6, got \"", address, "\""));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenRemoteChannel(const RemoteDaemon& daemon, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckRemoteAddress(daemon.address));
  ASSIGN_OR_RETURN(const tls::IdentityRules rules, tls::IdentityRules::Load(daemon.files, daemon.roles, absl::Now()));
  const auto refusal = std::make_shared<Refusal>();
  const auto check = [rules, refusal](const std::vector<std::string>& uris) {
    const absl::StatusOr<tls::Identity> peer = rules.Identify(uris);
    absl::MutexLock lock(&refusal->mu);
    return refusal->why = peer.ok() ? CheckServesTools(*peer) : peer.status();
  };
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(daemon.address, tls::MakeChannelCredentials(daemon.files, check), arguments);
  if (Connect(*channel, *refusal, Deadline::After(timeout))) return channel;
  const std::string why = IsRefused(*refusal) ? refusal->Text() : WhyNot(channel, daemon.files);
  return absl::UnavailableError(absl::StrCat("connect: cannot reach a daemon at ", daemon.address,
                                             ": no connection within ", absl::FormatDuration(timeout), ": ", why));
}

}  // namespace paramshard::internal
