#include "server/handoff/handoff_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status SocketError(absl::string_view operation, absl::string_view path) {
  return absl::UnavailableError(absl::StrCat(operation, " ", path, ": ", strerror(errno)));
}

absl::StatusOr<std::string> MintToken() {
  std::array<char, wire::kTokenBytes / 2> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError(absl::StrCat("mint token: ", strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path: at most ", sizeof(address.sun_path) - 1,
                                                   " bytes expected, got ", path.size(), " (", path, ")"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

bool SomebodyListens(const sockaddr_un& address) {
  wire::FileDescriptor probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

void Refuse(int socket, const absl::Status& why) {
  wire::HandoffRefusal refusal{};
  const absl::string_view reason = why.message().substr(0, sizeof(refusal.reason) - 1);
  std::copy(reason.begin(), reason.end(), refusal.reason);
  // A peer that does not listen any more needs no reason.
  (void)wire::SendHandoff(socket, wire::HandoffBytes(refusal), {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffServer>> HandoffServer::Start(Options options) {
  std::unique_ptr<HandoffServer> server(new HandoffServer(std::move(options)));
  RETURN_IF_ERROR(server->Listen());
  ASSIGN_OR_RETURN(server->own_pidfd_, OwnPidfd());
  server->thread_ = std::thread([raw = server.get()] { raw->Serve(); });
  return server;
}

HandoffServer::HandoffServer(Options options) : options_(std::move(options)), stop_(eventfd(0, EFD_CLOEXEC)) {}

HandoffServer::~HandoffServer() {
  const uint64_t one = 1;
  if (thread_.joinable()) {
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
    unlink(options_.path.c_str());
  }
}

absl::Status HandoffServer::Listen() {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options_.path));
  if (SomebodyListens(address)) {
    return absl::AlreadyExistsError(absl::StrCat("listen on ", options_.path, ": another daemon serves this socket"));
  }
  unlink(options_.path.c_str());
  listener_ = wire::FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid()) return SocketError("socket", options_.path);
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError("bind", options_.path);
  }
  // Peers are judged by their credentials; other users need to reach the socket for that.
  chmod(options_.path.c_str(), options_.allowed_users.size() > 1 ? 0666 : 0600);
  return listen(listener_.get(), 512) == 0 ? absl::OkStatus() : SocketError("listen", options_.path);
}

// --- The serving thread ---

void HandoffServer::Serve() {
  while (true) {
    std::vector<pollfd> polled{{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                               {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    std::vector<int> sockets;
    absl::Time deadline = absl::InfiniteFuture();
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [socket, connection] : connections_) {
        sockets.push_back(socket);
        polled.push_back({.fd = socket, .events = POLLIN, .revents = 0});
        polled.push_back({.fd = connection->pidfd.get(), .events = POLLIN, .revents = 0});
        if (connection->token.empty()) deadline = std::min(deadline, connection->hello_deadline);
      }
    }
    const int64_t wait =
        deadline == absl::InfiniteFuture() ? -1 : absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    if (poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(wait, -1))) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const pollfd& socket = polled[2 + 2 * i];
      const pollfd& process = polled[3 + 2 * i];
      if (process.revents != 0 || (socket.revents != 0 && !Receive(sockets[i]))) Drop(sockets[i]);
    }
    if (polled[1].revents != 0) Accept();
    DropLate();
  }
}

void HandoffServer::Accept() {
  auto connection = std::make_unique<Connection>();
  connection->socket = wire::FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection->socket.valid()) return;
  const int socket = connection->socket.get();
  const auto peer = CredentialsOf(socket);
  if (!peer.ok()) return;
  if (const absl::Status status = CheckUser(*peer); !status.ok()) return Refuse(socket, status);
  if (connection_count() >= options_.max_connections) {
    return Refuse(socket, absl::ResourceExhaustedError(absl::StrCat("connect: at most ", options_.max_connections,
                                                                    " companion connections are served")));
  }
  connection->peer = *peer;
  connection->hello_deadline = absl::Now() + options_.hello_timeout;
  absl::MutexLock lock(&mu_);
  connections_[socket] = std::move(connection);
}

absl::Status HandoffServer::CheckUser(const PeerCredentials& peer) const {
  const auto& users = options_.allowed_users;
  if (std::find(users.begin(), users.end(), peer.uid) != users.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("connect: user ", peer.uid, " is not the daemon's and not named by --allow-user"));
}

// Connections are added and removed by this thread alone, so that one stays while it is looked at.
bool HandoffServer::Receive(int socket) {
  Connection* connection;
  {
    absl::MutexLock lock(&mu_);
    connection = connections_.at(socket).get();
  }
  absl::StatusOr<wire::HandoffPacket> packet = wire::ReceiveHandoff(socket, absl::ZeroDuration());
  if (absl::IsUnavailable(packet.status())) return false;
  absl::Status status = packet.status();
  if (status.ok()) status = Welcome(*connection, *std::move(packet));
  if (!status.ok()) Refuse(socket, status);
  return status.ok();
}

absl::Status HandoffServer::Welcome(Connection& connection, wire::HandoffPacket packet) {
  if (!connection.token.empty()) {
    return absl::InvalidArgumentError("handoff message: nothing expected after the hello, got a packet");
  }
  RETURN_IF_ERROR(wire::ParseHandoff<wire::HandoffHello>(packet, wire::HandoffKind::kHello, 1).status());
  RETURN_IF_ERROR(CheckPidfd(packet.fds[0].get(), connection.peer.pid));
  ASSIGN_OR_RETURN(const std::string token, MintToken());
  {
    absl::MutexLock lock(&mu_);
    connection.pidfd = std::move(packet.fds[0]);
    connection.token = token;
    tokens_[token] = connection.socket.get();
  }
  wire::HandoffWelcome welcome;
  std::copy_n(token.data(), wire::kTokenBytes, welcome.token);
  return wire::SendHandoff(connection.socket.get(), wire::HandoffBytes(welcome), {own_pidfd_.get()});
}

void HandoffServer::Drop(int socket) {
  std::unique_ptr<Connection> connection;
  {
    absl::MutexLock lock(&mu_);
    connection = std::move(connections_[socket]);
    connections_.erase(socket);
    tokens_.erase(connection->token);
  }
  if (!connection->token.empty()) options_.on_gone(connection->token);
}

void HandoffServer::DropLate() {
  std::vector<int> late;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [socket, connection] : connections_) {
      if (connection->token.empty() && connection->hello_deadline <= absl::Now()) late.push_back(socket);
    }
  }
  for (int socket : late) {
    Refuse(socket, absl::DeadlineExceededError("handoff hello: none came in time"));
    Drop(socket);
  }
}

// --- For other threads ---

const HandoffServer::Connection* HandoffServer::FindToken(absl::string_view token) const {
  const auto found = tokens_.find(std::string(token));
  return found == tokens_.end() ? nullptr : connections_.at(found->second).get();
}

absl::StatusOr<HandoffServer::Peer> HandoffServer::Authenticate(absl::string_view token) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  if (connection != nullptr) return Peer{.pid = connection->peer.pid, .uid = connection->peer.uid};
  return absl::UnauthenticatedError(token.empty()
                                        ? "metadata: a paramshard-token from the companion socket expected, got none"
                                        : "metadata: a paramshard-token of an open companion connection expected");
}

absl::Status HandoffServer::SendMemory(absl::string_view token, const wire::HandoffMemory& message,
                                       absl::Span<const int> fds) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  if (connection == nullptr) return absl::AbortedError("handoff: the trainer has closed its companion connection");
  return wire::SendHandoff(connection->socket.get(), wire::HandoffBytes(message), fds);
}

absl::Status HandoffServer::Kill(absl::string_view token) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  return connection == nullptr ? absl::OkStatus() : KillProcess(connection->pidfd.get());
}

int64_t HandoffServer::connection_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(connections_.size());
}

}  // namespace paramshard::server
