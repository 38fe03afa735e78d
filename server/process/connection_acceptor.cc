#include "server/process/connection_acceptor.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/descriptor_limit.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

constexpr int kBacklog = 512;
// How long new connections wait in the queue when they cannot be accepted.
constexpr int kPauseMilliseconds = 100;
// Interval of checks for connections to close.
constexpr int kLookMilliseconds = 1000;

absl::Status ListenError(absl::string_view address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("listen on ", address, ": ", why));
}

absl::StatusOr<ListeningSocket> Listen(const addrinfo& address, absl::string_view name) {
  ListeningSocket listening{
      .tcp = wire::FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int fd = listening.tcp.get();
  const int on = 1;
  if (fd < 0) return ListenError(name, strerror(errno));
  // After a restart, connections of the previous daemon may still time out.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Inherited by connections: small messages must not wait for each other.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, kBacklog) != 0) {
    return ListenError(name, strerror(errno));
  }
  return listening;
}

// Sets the port, which has the same place in addresses of IPv4 and IPv6.
void SetPort(sockaddr& address, int port) {
  reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
}

// Returns the kernel's cookie of a socket; null for other descriptors.
std::optional<uint64_t> CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

// Returns the address of a TCP connection's peer, in the form of grpc::ServerContext::peer. UNAVAILABLE it is closed.
absl::StatusOr<std::string> PeerAddress(int fd) {
  sockaddr_in6 six{};
  socklen_t size = sizeof(six);
  char text[INET6_ADDRSTRLEN] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&six), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("connect: failed to read the peer's address: ", strerror(errno)));
  }
  const int port = ntohs(six.sin6_port);
  if (six.sin6_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(six).sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  const std::string scope = six.sin6_scope_id == 0 ? "" : absl::StrCat("%25", six.sin6_scope_id);
  return absl::StrCat("ipv6:%5B", text, scope, "%5D:", port);
}

std::string UserName(UserQuota::User user) {
  return user.has_value() ? absl::StrCat("user ", *user) : "callers over TCP";
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> AddressesOf(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  absl::string_view host = absl::string_view(host_and_port).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(), host_and_port.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) return ListenError(host_and_port, gai_strerror(error));
  return Addresses(found, freeaddrinfo);
}

}  // namespace

absl::StatusOr<std::vector<ListeningSocket>> ListenOnAddress(const std::string& address) {
  ASSIGN_OR_RETURN(const Addresses addresses, AddressesOf(address));
  std::vector<ListeningSocket> sockets;
  absl::Status refused;
  for (const addrinfo* found = addresses.get(); found != nullptr; found = found->ai_next) {
    // IPv4 and IPv6 addresses of a name share one port.
    if (!sockets.empty()) SetPort(*found->ai_addr, sockets[0].port);
    absl::StatusOr<ListeningSocket> listening = Listen(*found, address);
    refused.Update(listening.status());
    if (!listening.ok()) continue;
    listening->port = PortOf(listening->tcp.get());
    sockets.push_back(*std::move(listening));
  }
  // A name may have addresses of a family that the machine does not support.
  if (sockets.empty()) return refused;
  return sockets;
}

absl::Status CheckIsLocal(const std::string& address) {
  const absl::StatusOr<Addresses> addresses = AddressesOf(address);
  if (!addresses.ok()) return absl::OkStatus();
  int why = 0;
  for (const addrinfo* found = addresses->get(); found != nullptr; found = found->ai_next) {
    const wire::FileDescriptor fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SetPort(*found->ai_addr, 0);
    if (fd.valid() && bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0) return absl::OkStatus();
    why = errno;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("want an address of this machine, got ", address, ": ", strerror(why)));
}

ConnectionAcceptor::ConnectionAcceptor(std::vector<ListeningSocket> sockets, Options options)
    : options_(options),
      system_(options_.system == nullptr ? &kernel_ : options_.system),
      places_(options_.max_connections, geteuid()),
      last_look_(SteadyNow()),
      next_check_(SteadyDeadline(kSocketCheckInterval)),
      sockets_(std::move(sockets)),
      stop_(eventfd(0, EFD_CLOEXEC)) {}

ConnectionAcceptor::~ConnectionAcceptor() {
  const uint64_t one = 1;
  if (!thread_.joinable()) return;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void ConnectionAcceptor::AddServer(UserQuota::User user, grpc::ServerBuilder& builder,
                                   const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  servers_[user] = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

absl::Status ConnectionAcceptor::Start() {
  if (!stop_.valid())
    return absl::ResourceExhaustedError(
        "accept connections: failed to create a file descriptor; raise the limit (ulimit -n, LimitNOFILE)");
  ASSIGN_OR_RETURN(thread_, StartThread("connections of gRPC", [this] { Serve(); }));
  return absl::OkStatus();
}

void ConnectionAcceptor::Serve() {
  bool muted = false;
  const int longest_wait =
      options_.peers == nullptr ? static_cast<int>(absl::ToInt64Milliseconds(kSocketCheckInterval)) : kLookMilliseconds;
  while (true) {
    RestorePaths();
    std::vector<pollfd> polled{{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    for (const ListeningSocket& socket : sockets_) {
      polled.push_back({.fd = socket.fd(), .events = POLLIN, .revents = 0});
    }
    // While new connections must wait, polls only for the stop.
    const int ready = poll(polled.data(), muted ? 1 : polled.size(), muted ? kPauseMilliseconds : longest_wait);
    if (ready < 0 && errno != EINTR) absl::SleepFor(absl::Milliseconds(kPauseMilliseconds));
    if (ready > 0 && polled[0].revents != 0) return;
    EndThoseOver();
    if (std::exchange(muted, false) || ready <= 0) continue;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !Accept(sockets_[i - 1])) muted = true;
    }
  }
}

void ConnectionAcceptor::RestorePaths() {
  if (SteadyNow() < next_check_) return;
  next_check_ = SteadyDeadline(kSocketCheckInterval);
  for (const ListeningSocket& socket : sockets_) {
    if (socket.path != nullptr) socket.path->Restore();
  }
}

bool ConnectionAcceptor::Accept(const ListeningSocket& listener) {
  wire::FileDescriptor connection(system_->Accept(listener.fd()));
  if (!connection.valid()) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO;
  const absl::StatusOr<Server*> server = Admit(connection.get(), listener.path != nullptr);
  if (!server.ok()) {
    if (const std::optional<int64_t> count = refusals_.Pass()) {
      Log(LogLevel::kWarning, "rejected connections to gRPC",
          {{"count", absl::StrCat(*count)}, {"last", std::string(server.status().message())}});
    }
    return true;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
  taken.listener_fd = listener.fd();
  taken.fd = connection.Release();
  (*server)->HandleNewConnection(&taken);
  return true;
}

absl::StatusOr<ConnectionAcceptor::Server*> ConnectionAcceptor::Admit(int connection, bool names_caller) {
  // An earlier connection with this descriptor number is closed.
  Forget(connection);
  // The kernel assigns the lowest free number, so at least that many descriptors are open.
  if (connection >= DescriptorLimit() / 4 * 3) {
    return absl::ResourceExhaustedError("connect: less than a quarter of the daemon's descriptors is free");
  }
  UserQuota::User user;
  if (names_caller) {
    ASSIGN_OR_RETURN(const PeerCredentials peer, system_->Credentials(connection));
    user = peer.uid;
  }
  ASSIGN_OR_RETURN(Server* const server, ServerOf(user));
  if (user != geteuid()) RETURN_IF_ERROR(TakePlace(connection, user));
  return server;
}

absl::StatusOr<ConnectionAcceptor::Server*> ConnectionAcceptor::ServerOf(UserQuota::User user) const {
  if (const auto found = servers_.find(user); found != servers_.end()) return found->second.get();
  return absl::PermissionDeniedError(
      absl::StrCat("connect: ", UserName(user), ": not the daemon's user and not named by --allow-user"));
}

absl::Status ConnectionAcceptor::TakePlace(int connection, UserQuota::User user) {
  std::string address;
  if (options_.peers != nullptr && !user.has_value()) {
    ASSIGN_OR_RETURN(address, PeerAddress(connection));
  }
  if (!places_.Take(user)) {
    MakeRoomFor(user);
    if (!places_.Take(user)) {
      return absl::ResourceExhaustedError(absl::StrCat("connect: the share of ", UserName(user), " of ",
                                                       options_.max_connections, " connections is used up"));
    }
  }
  const uint64_t number = ++last_number_;
  if (!address.empty()) {
    options_.peers->Begin(address);
    newcomers_[number] = connection;
  }
  held_[connection] = {.user = user, .cookie = CookieOf(connection).value_or(0), .address = address, .number = number};
  return absl::OkStatus();
}

void ConnectionAcceptor::MakeRoomFor(UserQuota::User user) {
  const UserQuota::User over_tcp;
  if (!places_.WouldFind(user, over_tcp) || !EndOldest()) ForgetClosed();
}

bool ConnectionAcceptor::EndOldest() {
  while (!newcomers_.empty()) {
    const auto [number, connection] = *newcomers_.begin();
    const Held& held = held_.at(connection);
    if (options_.peers->HasHadCall(held.address)) {
      newcomers_.erase(number);
      continue;
    }
    if (!ShutDown(connection, held.cookie)) return false;
    if (const std::optional<int64_t> count = departures_.Pass()) {
      Log(LogLevel::kWarning, "closed connections without a call for newer ones",
          {{"count", absl::StrCat(*count)}, {"last", held.address}});
    }
    Forget(connection);
    return true;
  }
  return false;
}

// Shuts down that socket only, even if gRPC has closed it and its number is reused. gRPC notices on its descriptor.
bool ConnectionAcceptor::ShutDown(int connection, uint64_t cookie) {
  const wire::FileDescriptor socket(system_->Duplicate(connection));
  if (!socket.valid()) return errno == EBADF;
  if (CookieOf(socket.get()) == cookie) shutdown(socket.get(), SHUT_RDWR);
  return true;
}

void ConnectionAcceptor::Forget(int connection) {
  const auto found = held_.find(connection);
  if (found == held_.end()) return;
  places_.GiveBack(found->second.user);
  newcomers_.erase(found->second.number);
  held_.erase(found);
}

void ConnectionAcceptor::EndThoseOver() {
  const SteadyTime now = SteadyNow();
  if (options_.peers == nullptr || now < After(last_look_, absl::Milliseconds(kLookMilliseconds))) return;
  last_look_ = now;
  ForgetClosed();
  std::set<std::string> addresses;
  for (auto& [connection, held] : held_) {
    addresses.insert(held.address);
    if (held.is_ended || held.address.empty()) continue;
    const absl::Status status = options_.peers->Check(held.address);
    if (status.ok()) continue;
    held.is_ended = ShutDown(connection, held.cookie);
    if (!held.is_ended) continue;
    log_.Write(LogLevel::kWarning, "connection closed",
               {{"from", held.address}, {"why", std::string(status.message())}});
  }
  options_.peers->KeepOnly(addresses);
}

// Finds connections that gRPC has closed, which it does not report. Called when a share is used up.
void ConnectionAcceptor::ForgetClosed() {
  for (auto held = held_.begin(); held != held_.end();) {
    const int connection = held->first;
    const bool open = CookieOf(connection) == held->second.cookie;
    ++held;
    if (!open) Forget(connection);
  }
}

}  // namespace paramshard::server
