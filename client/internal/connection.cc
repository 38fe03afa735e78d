#include "client/internal/connection.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

// gRPC does not say why a connection failed.
absl::Status ExplainRemote(absl::string_view call, absl::Status answer) {
  if (!absl::IsUnavailable(answer)) return answer;
  return absl::UnavailableError(
      absl::StrCat(call, ": ", answer.message(),
                   "; the daemon on another machine reported this, exited, or cannot be reached: see "
                   "its log, which names rejected certificates, and call again"));
}

constexpr absl::Duration kMomentBetweenSockets = absl::Milliseconds(20);
constexpr absl::Duration kDyingTime = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const DaemonPlace& place, absl::Duration timeout) {
  if (const auto* const remote = std::get_if<RemoteDaemon>(&place)) {
    ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenRemoteChannel(*remote, timeout));
    return std::shared_ptr<Connection>(new Connection(std::nullopt, RandomId(), std::move(channel)));
  }
  const auto& paths = std::get<SocketPaths>(place);
  ASSIGN_OR_RETURN(Companion companion, Companion::Connect(paths.companion, timeout));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(paths, timeout));
  std::string id = companion.token();
  return std::shared_ptr<Connection>(new Connection(std::move(companion), std::move(id), std::move(channel)));
}

Connection::Connection(std::optional<Companion> companion, std::string id, std::shared_ptr<grpc::Channel> channel)
    : companion_(std::move(companion)),
      id_(std::move(id)),
      channel_(std::move(channel)),
      stub_(v1::TrainerService::NewStub(channel_)),
      admin_stub_(v1::AdminService::NewStub(channel_)) {}

bool Connection::IsLost() const { return IsLostWithin(absl::ZeroDuration()); }

bool Connection::IsLostWithin(absl::Duration wait) const { return companion_.has_value() && companion_->IsLost(wait); }

// A dying process closes its sockets one after the other. If gRPC's was the first, its channel is broken by then.
bool Connection::IsAboutToBeLost() const {
  if (IsLostWithin(kMomentBetweenSockets)) return true;
  return channel_->GetState(false) != GRPC_CHANNEL_READY && IsLostWithin(kDyingTime);
}

void Connection::Authenticate(grpc::ClientContext& context) const {
  if (companion_.has_value()) context.AddMetadata(wire::kTokenMetadata, companion_->token());
}

absl::Status Connection::Explain(absl::string_view call, absl::Status answer) const {
  if (!companion_.has_value()) return ExplainRemote(call, answer);
  const bool lost = absl::IsUnavailable(answer) ? IsAboutToBeLost() : !answer.ok() && IsLost();
  if (!lost) return answer;
  return absl::UnavailableError(absl::StrCat(call, ": the daemon (pid ", companion_->daemon_pid(),
                                             ") exited during the call (", answer.message(),
                                             "); start it, unless its keeper does"));
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Connect(DaemonPlace place, absl::Duration timeout) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, Connection::Open(place, timeout));
  return std::unique_ptr<Daemon>(new Daemon(std::move(place), timeout, std::move(connection)));
}

absl::StatusOr<std::shared_ptr<Connection>> Daemon::Connected() {
  const absl::MutexLock lock(&mu_);
  if (!connection_->IsLost()) return connection_;
  absl::StatusOr<std::shared_ptr<Connection>> opened = Connection::Open(place_, timeout_);
  if (opened.ok()) return connection_ = *std::move(opened);
  if (opened.status().code() != absl::StatusCode::kUnavailable) return opened.status();
  return absl::UnavailableError(absl::StrCat(
      opened.status().message(),
      "; the daemon that this client was connected to exited; its keeper, if it has one, starts it again"));
}

}  // namespace paramshard::internal
