#include "client/internal/connection.h"

#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/wire/handoff.h"

namespace paramshard::internal {
namespace {

constexpr char kWhatToDo[] =
    "start it, unless its keeper does, and call again; it has the models that a keeper has held, and those that it "
    "restores from a save";

constexpr absl::Duration kMomentBetweenSockets = absl::Milliseconds(20);
constexpr absl::Duration kDyingTime = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const SocketPaths& paths, absl::Duration timeout) {
  ASSIGN_OR_RETURN(Companion companion, Companion::Connect(paths.handoff, timeout));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(paths, timeout));
  return std::shared_ptr<Connection>(new Connection(std::move(companion), std::move(channel)));
}

Connection::Connection(Companion companion, std::shared_ptr<grpc::Channel> channel)
    : companion_(std::move(companion)),
      channel_(std::move(channel)),
      stub_(v1::TrainerService::NewStub(channel_)),
      admin_stub_(v1::AdminService::NewStub(channel_)) {}

bool Connection::IsLost() const { return IsLostWithin(absl::ZeroDuration()); }

bool Connection::IsLostWithin(absl::Duration wait) const {
  pollfd fds[] = {{.fd = companion_.daemon_pidfd(), .events = POLLIN, .revents = 0},
                  {.fd = companion_.socket(), .events = POLLRDHUP, .revents = 0}};
  return poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(wait))) > 0;
}

// The sockets of a process that dies are closed one after the other. gRPC's, if it was the first, is broken by then.
bool Connection::IsAboutToBeLost() const {
  if (IsLostWithin(kMomentBetweenSockets)) return true;
  return channel_->GetState(false) != GRPC_CHANNEL_READY && IsLostWithin(kDyingTime);
}

void Connection::Authenticate(grpc::ClientContext& context) const {
  context.AddMetadata(wire::kTokenMetadata, companion_.token());
}

absl::Status Connection::Explain(absl::string_view call, absl::Status answer) const {
  const bool lost = absl::IsUnavailable(answer) ? IsAboutToBeLost() : !answer.ok() && IsLost();
  if (!lost) return answer;
  return absl::UnavailableError(absl::StrCat(call, ": the daemon (pid ", companion_.daemon_pid(),
                                             ") went away during the call (", answer.message(), "); ", kWhatToDo));
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Connect(const SocketPaths& paths, absl::Duration timeout) {
  ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, Connection::Open(paths, timeout));
  return std::unique_ptr<Daemon>(new Daemon(paths, timeout, std::move(connection)));
}

absl::StatusOr<std::shared_ptr<Connection>> Daemon::Connected() {
  const absl::MutexLock lock(&mu_);
  if (!connection_->IsLost()) return connection_;
  absl::StatusOr<std::shared_ptr<Connection>> opened = Connection::Open(paths_, timeout_);
  if (opened.ok()) return connection_ = *std::move(opened);
  if (opened.status().code() != absl::StatusCode::kUnavailable) return opened.status();
  return absl::UnavailableError(
      absl::StrCat(opened.status().message(), "; the daemon that this client was connected to has gone: ", kWhatToDo));
}

}  // namespace paramshard::internal
