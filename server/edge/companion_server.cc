#include "server/edge/companion_server.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
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
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Tags of events. Connection n has 2n for its socket and 2n + 1 for its process.
constexpr uint64_t kStopTag = 0;
constexpr uint64_t kListenerTag = 1;
constexpr uint64_t kFirstNumber = 1;

constexpr int kEventsAtOnce = 64;
// How long new connections wait in the socket's queue when they can be neither accepted nor rejected.
constexpr absl::Duration kMuted = absl::Milliseconds(100);
// Pause after a wait that failed.
constexpr absl::Duration kPauseAfterError = absl::Milliseconds(100);

absl::Status OutOfDescriptors() {
  return absl::ResourceExhaustedError(
      "connect: no free file descriptor; raise the daemon's limit (ulimit -n, LimitNOFILE)");
}

absl::Status GoneError() { return absl::AbortedError("companion: the client has closed its companion connection"); }

absl::StatusOr<std::string> MintToken() {
  std::array<char, wire::kTokenBytes / 2> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError(absl::StrCat("failed to mint a token: ", strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

wire::FileDescriptor MakeEvent() { return wire::FileDescriptor(eventfd(0, EFD_CLOEXEC)); }

bool IsOutOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

// Returns true if only this connection is lost: the next one may be accepted at once.
bool ConcernsOneConnection(int error) {
  return error == EINTR || error == EAGAIN || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompanionServer>> CompanionServer::Start(Options options) {
  ASSIGN_OR_RETURN(WatchList watched, WatchList::Create());
  std::unique_ptr<CompanionServer> server(new CompanionServer(std::move(options), std::move(watched)));
  if (!server->stop_.valid() || !server->spare_.valid()) return OutOfDescriptors();
  // Access is checked by credentials, for which other users must be able to connect.
  ASSIGN_OR_RETURN(server->listener_,
                   ListeningPath::Create({.path = server->options_.path,
                                          .type = SOCK_SEQPACKET,
                                          .mode = server->options_.allowed_users.size() > 1 ? 0666U : 0600U,
                                          .restore_directory = server->options_.restore_directory}));
  ASSIGN_OR_RETURN(server->own_pidfd_, OwnPidfd());
  RETURN_IF_ERROR(server->watched_.Add(server->stop_.get(), kStopTag));
  RETURN_IF_ERROR(server->watched_.Add(server->listener_->fd(), kListenerTag));
  ASSIGN_OR_RETURN(server->thread_, StartThread("companion connections", [raw = server.get()] { raw->Serve(); }));
  return server;
}

CompanionServer::CompanionServer(Options options, WatchList watched)
    : options_(std::move(options)),
      system_(options_.system == nullptr ? &kernel_ : options_.system),
      stop_(MakeEvent()),
      next_check_(SteadyDeadline(kSocketCheckInterval)),
      watched_(std::move(watched)),
      spare_(MakeEvent()),
      last_number_(kFirstNumber - 1),
      places_(options_.max_connections, geteuid()) {}

CompanionServer::~CompanionServer() {
  const uint64_t one = 1;
  if (thread_.joinable()) {
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
}

// --- The serving thread ---

void CompanionServer::Serve() {
  std::array<epoll_event, kEventsAtOnce> events;
  while (true) {
    for (const epoll_event& event : Await(absl::MakeSpan(events))) {
      if (event.data.u64 == kStopTag) return;
      Handle(event.data.u64);
    }
    DropLate();
    CheckListener();
    if (muted_until_.has_value() && SteadyNow() >= *muted_until_) SetMuted(false);
  }
}

// Errors do not end the loop: without this thread no trainer could attach and no death would be noticed.
absl::Span<const epoll_event> CompanionServer::Await(absl::Span<epoll_event> events) {
  const int count = system_->Wait(watched_.fd(), events, WaitMilliseconds());
  if (count >= 0) return events.subspan(0, count);
  if (errno != EINTR) {
    Log(LogLevel::kError, "failed to wait for companion connections", {{"error", strerror(errno)}});
    absl::SleepFor(kPauseAfterError);
  }
  return {};
}

// Returns the time until a hello times out, the listener is checked, or muting ends.
int CompanionServer::WaitMilliseconds() const {
  SteadyTime next = std::min(next_check_, muted_until_.value_or(next_check_));
  if (!silent_.empty()) {
    next = std::min(next, Find(silent_.begin()->first)->hello_deadline);
  }
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(TimeLeft(next), absl::Milliseconds(1))));
}

void CompanionServer::Handle(uint64_t tag) {
  if (tag == kListenerTag) return Accept();
  const uint64_t number = tag / 2;
  Connection* const connection = Find(number);
  // An earlier event of the same wait may have closed it.
  if (connection == nullptr) return;
  const bool process_ended = tag % 2 == 1;
  if (process_ended) return Drop(number);
  if (const absl::Status status = Receive(*connection); !status.ok()) Drop(number, status);
}

void CompanionServer::Accept() {
  wire::FileDescriptor socket(system_->Accept(listener_->fd()));
  if (socket.valid()) {
    if (const absl::Status status = Admit(socket); !status.ok()) wire::RefuseCompanion(socket.get(), status);
    return;
  }
  if (ConcernsOneConnection(errno)) return;
  if (!IsOutOfDescriptors(errno) || !RefuseForLackOfDescriptors()) SetMuted(true);
}

// Avoids a busy loop: a connection that cannot be accepted keeps the listener readable.
bool CompanionServer::RefuseForLackOfDescriptors() {
  bool refused = false;
  if (spare_.valid()) {
    spare_.Reset();
    const wire::FileDescriptor socket(system_->Accept(listener_->fd()));
    refused = socket.valid();
    if (refused) wire::RefuseCompanion(socket.get(), OutOfDescriptors());
  }
  spare_ = MakeEvent();
  return refused;
}

// Takes the socket when it returns OK.
absl::Status CompanionServer::Admit(wire::FileDescriptor& socket) {
  ASSIGN_OR_RETURN(const PeerCredentials peer, system_->Credentials(socket.get()));
  RETURN_IF_ERROR(CheckUser(peer));
  RETURN_IF_ERROR(TakePlace(peer.uid));
  const uint64_t number = last_number_ + 1;
  if (const absl::Status watched = watched_.Add(socket.get(), 2 * number); !watched.ok()) {
    places_.GiveBack(peer.uid);
    return watched;
  }
  last_number_ = number;
  auto connection = std::make_unique<Connection>();
  connection->number = number;
  connection->socket = std::move(socket);
  connection->peer = peer;
  connection->hello_deadline = SteadyDeadline(options_.hello_timeout);
  silent_[number] = peer.uid;
  absl::MutexLock lock(&mu_);
  connections_[number] = std::move(connection);
  return absl::OkStatus();
}

absl::Status CompanionServer::CheckUser(const PeerCredentials& peer) const {
  const auto& users = options_.allowed_users;
  if (std::find(users.begin(), users.end(), peer.uid) != users.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("connect: user ", peer.uid,
                                                  " is not the daemon's; start the daemon with --allow-user=", peer.uid,
                                                  " to let this user connect"));
}

absl::Status CompanionServer::TakePlace(uid_t user) {
  if (places_.Take(user)) return absl::OkStatus();
  const absl::Status full = absl::ResourceExhaustedError(
      absl::StrCat("connect: at most ", options_.max_connections,
                   " companion connections are allowed, half of them for a user other than the daemon's"));
  const auto gives_way = std::find_if(silent_.begin(), silent_.end(),
                                      [&](const auto& silent) { return places_.WouldFind(user, silent.second); });
  if (gives_way == silent_.end()) return full;
  Drop(gives_way->first, full);
  return places_.Take(user) ? absl::OkStatus() : full;
}

absl::Status CompanionServer::Receive(Connection& connection) {
  absl::StatusOr<wire::CompanionPacket> packet =
      wire::ReceiveCompanionPacket(connection.socket.get(), absl::ZeroDuration());
  if (absl::IsDeadlineExceeded(packet.status())) return absl::OkStatus();
  RETURN_IF_ERROR(packet.status());
  return Welcome(connection, *std::move(packet));
}

absl::Status CompanionServer::Welcome(Connection& connection, wire::CompanionPacket packet) {
  if (!connection.token.empty()) {
    return absl::InvalidArgumentError("companion message: a packet after the hello is not allowed");
  }
  RETURN_IF_ERROR(wire::ParseCompanionPacket<wire::CompanionHello>(packet, wire::CompanionKind::kHello, 1).status());
  RETURN_IF_ERROR(CheckPidfd(packet.fds[0].get(), connection.peer.pid));
  ASSIGN_OR_RETURN(const std::string token, MintToken());
  RETURN_IF_ERROR(watched_.Add(packet.fds[0].get(), 2 * connection.number + 1));
  silent_.erase(connection.number);
  {
    absl::MutexLock lock(&mu_);
    connection.pidfd = std::move(packet.fds[0]);
    connection.token = token;
    tokens_[token] = connection.number;
  }
  wire::CompanionWelcome welcome;
  std::copy_n(token.data(), wire::kTokenBytes, welcome.token);
  return wire::SendCompanionPacket(connection.socket.get(), wire::CompanionBytes(welcome), {own_pidfd_.get()});
}

// Forgets the connection before it closes the socket, so that a peer that reads the end finds its token invalid.
void CompanionServer::Drop(uint64_t number, const absl::Status& why) {
  std::unique_ptr<Connection> connection;
  {
    absl::MutexLock lock(&mu_);
    const auto found = connections_.find(number);
    connection = std::move(found->second);
    connections_.erase(found);
    tokens_.erase(connection->token);
  }
  silent_.erase(number);
  places_.GiveBack(connection->peer.uid);
  watched_.Remove(connection->socket.get());
  if (connection->pidfd.valid()) watched_.Remove(connection->pidfd.get());
  if (!connection->token.empty()) options_.on_gone(connection->token);
  if (!why.ok()) wire::RefuseCompanion(connection->socket.get(), why);
  connection.reset();
  if (muted_until_.has_value()) SetMuted(false);
}

void CompanionServer::DropLate() {
  while (!silent_.empty() && Find(silent_.begin()->first)->hello_deadline <= SteadyNow()) {
    Drop(silent_.begin()->first, absl::DeadlineExceededError("companion hello: timed out"));
  }
}

void CompanionServer::CheckListener() {
  if (SteadyNow() < next_check_) return;
  next_check_ = SteadyDeadline(kSocketCheckInterval);
  const wire::FileDescriptor before = listener_->Restore();
  if (!before.valid()) return;
  watched_.Remove(before.get());
  // If this fails, the next check finds the socket in its place, and no connection is accepted.
  if (const absl::Status added = watched_.Add(listener_->fd(), kListenerTag); !added.ok()) {
    Log(LogLevel::kError, "failed to wait for companion connections", {{"error", added.ToString()}});
  }
  muted_until_ = std::nullopt;
}

void CompanionServer::SetMuted(bool muted) {
  if (!muted && !spare_.valid()) spare_ = MakeEvent();
  muted_until_ = muted ? std::optional(SteadyDeadline(kMuted)) : std::nullopt;
  watched_.SetMuted(listener_->fd(), kListenerTag, muted);
}

// The result stays valid: only this thread adds and removes connections.
CompanionServer::Connection* CompanionServer::Find(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  const auto found = connections_.find(number);
  return found == connections_.end() ? nullptr : found->second.get();
}

// --- For other threads ---

const CompanionServer::Connection* CompanionServer::FindToken(absl::string_view token) const {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : connections_.at(found->second).get();
}

absl::StatusOr<CompanionServer::Peer> CompanionServer::Authenticate(absl::string_view token) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  if (connection != nullptr) return Peer{.pid = connection->peer.pid, .uid = connection->peer.uid};
  return absl::UnauthenticatedError(absl::StrCat(
      "metadata: want a ", wire::kTokenMetadata,
      token.empty() ? " from the companion socket, got none" : " of an open companion connection, got another"));
}

absl::Status CompanionServer::SendBytes(absl::string_view token, absl::Span<const uint8_t> bytes,
                                        absl::Span<const int> fds) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  if (connection == nullptr) return GoneError();
  return wire::SendCompanionPacket(connection->socket.get(), bytes, fds);
}

absl::StatusOr<wire::FileDescriptor> CompanionServer::Process(absl::string_view token) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  if (connection == nullptr) return GoneError();
  wire::FileDescriptor pidfd(system_->Duplicate(connection->pidfd.get()));
  if (pidfd.valid()) return pidfd;
  return OutOfDescriptors();
}

absl::Status CompanionServer::Kill(absl::string_view token) const {
  absl::MutexLock lock(&mu_);
  const Connection* connection = FindToken(token);
  return connection == nullptr ? absl::OkStatus() : system_->Kill(connection->pidfd.get());
}

int64_t CompanionServer::connection_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(connections_.size());
}

}  // namespace paramshard::server
