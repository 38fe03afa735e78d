#include "client/internal/companion.h"

#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/internal/deadline.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

// Descriptors of a connection and of gRPC at first, which ends the process where it finds none.
constexpr int64_t kDescriptorsToConnect = 16;

absl::Status OutOfDescriptors(int64_t left) {
  return absl::ResourceExhaustedError(absl::StrCat("connect: want ", kDescriptorsToConnect,
                                                   " free file descriptors, got ", left,
                                                   "; raise the limit of this process (ulimit -n)"));
}

bool IsOutOfDescriptors(int error) { return error == EMFILE || error == ENFILE; }

// Takes no more than one of them itself.
absl::Status CheckDescriptorsLeft() {
  rlimit limit{};
  DIR* const open_files = opendir("/proc/self/fd");
  if (open_files == nullptr) return IsOutOfDescriptors(errno) ? OutOfDescriptors(0) : absl::OkStatus();
  int64_t used = -3;  // this one, and the two links to folders
  while (readdir(open_files) != nullptr) ++used;
  closedir(open_files);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used);
  return left >= kDescriptorsToConnect ? absl::OkStatus() : OutOfDescriptors(left);
}

// Connects again after a signal that the trainer handles.
int ConnectDespiteSignals(int fd, const sockaddr_un& address) {
  int result;
  do {
    result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  return result;
}

absl::StatusOr<wire::FileDescriptor> ConnectSocket(const std::string& path, absl::Duration timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("connect ", path, ": want a path of fewer than ",
                                                   sizeof(address.sun_path), " bytes, got ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  wire::FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // Limits connect too, which waits while the daemon's queue is full. Zero would be no limit.
  const timeval bound = absl::ToTimeval(std::max(timeout, absl::Microseconds(1)));
  if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
  if (!fd.valid() || ConnectDespiteSignals(fd.get(), address) != 0) {
    if (errno == EAGAIN) {
      return absl::DeadlineExceededError(absl::StrCat("connect: timed out after ", absl::FormatDuration(timeout),
                                                      ": the daemon at ", path, " accepts no connection"));
    }
    if (IsOutOfDescriptors(errno)) return OutOfDescriptors(0);
    const std::string text = absl::StrCat("connect: cannot reach a daemon at ", path, ": ", strerror(errno));
    if (errno == EACCES) return absl::PermissionDeniedError(text);
    return absl::UnavailableError(absl::StrCat(text, "; start paramshardd, or correct the socket directory"));
  }
  return fd;
}

absl::Status SendHello(int socket) {
  const wire::FileDescriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!own.valid() && IsOutOfDescriptors(errno)) return OutOfDescriptors(0);
  if (!own.valid()) return absl::UnimplementedError(absl::StrCat("connect: pidfd_open failed: ", strerror(errno)));
  const int fd = own.get();
  return wire::SendCompanionPacket(socket, wire::CompanionBytes(wire::CompanionHello{}), absl::MakeConstSpan(&fd, 1));
}

absl::StatusOr<pid_t> PeerPid(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) return peer.pid;
  return absl::InternalError(absl::StrCat("connect: failed to read peer credentials: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<Companion> Companion::Connect(const std::string& path, absl::Duration timeout) {
  RETURN_IF_ERROR(CheckDescriptorsLeft());
  ASSIGN_OR_RETURN(wire::FileDescriptor socket, ConnectSocket(path, timeout));
  ASSIGN_OR_RETURN(const pid_t daemon_pid, PeerPid(socket.get()));
  // A daemon that rejects the client closes at once: its reason says more than the failed send.
  const absl::Status sent = SendHello(socket.get());
  absl::StatusOr<wire::CompanionPacket> packet = wire::ReceiveCompanionPacket(socket.get(), timeout);
  if (!packet.ok()) return sent.ok() ? packet.status() : sent;
  if (const auto refusal = wire::RefusalIn(*packet); refusal.has_value()) return *refusal;
  ASSIGN_OR_RETURN(const auto welcome,
                   wire::ParseCompanionPacket<wire::CompanionWelcome>(*packet, wire::CompanionKind::kWelcome, 1));
  return Companion(std::move(socket), std::move(packet->fds[0]), std::string(welcome.token, wire::kTokenBytes),
                   daemon_pid);
}

Companion::Companion(wire::FileDescriptor socket, wire::FileDescriptor daemon_pidfd, std::string token,
                     pid_t daemon_pid)
    : socket_(std::move(socket)),
      daemon_pidfd_(std::move(daemon_pidfd)),
      token_(std::move(token)),
      daemon_pid_(daemon_pid) {}

Companion::~Companion() {
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
}

absl::StatusOr<SessionMemory> Companion::ReceiveMemory(absl::Duration timeout) {
  ASSIGN_OR_RETURN(wire::CompanionPacket packet, wire::ReceiveCompanionPacket(socket_.get(), timeout));
  SessionMemory memory;
  ASSIGN_OR_RETURN(memory.sizes,
                   wire::ParseCompanionPacket<wire::CompanionMemory>(packet, wire::CompanionKind::kMemory, 3));
  memory.planes = std::move(packet.fds[0]);
  memory.slots = std::move(packet.fds[1]);
  memory.words = std::move(packet.fds[2]);
  return memory;
}

absl::StatusOr<ReaderMemory> Companion::ReceiveReader(absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  ASSIGN_OR_RETURN(wire::CompanionPacket packet, wire::ReceiveCompanionPacket(socket_.get(), deadline.Left()));
  ASSIGN_OR_RETURN(const auto reader,
                   wire::ParseCompanionPacket<wire::CompanionReader>(packet, wire::CompanionKind::kReader, 2));
  ReaderMemory memory{.publication = {std::move(packet.fds[0]), reader.publication_bytes},
                      .lease = {std::move(packet.fds[1]), reader.lease_bytes},
                      .planes = {}};
  if (reader.ranks < 1 || reader.ranks > kMaxShardSize) {
    return absl::InternalError(
        absl::StrCat("companion message: want planes of 1 to ", kMaxShardSize, " ranks, got ", reader.ranks));
  }
  for (int64_t rank = 0; rank < reader.ranks; ++rank) {
    ASSIGN_OR_RETURN(packet, wire::ReceiveCompanionPacket(socket_.get(), deadline.Left()));
    ASSIGN_OR_RETURN(const auto planes,
                     wire::ParseCompanionPacket<wire::CompanionPlanes>(packet, wire::CompanionKind::kPlanes, 1));
    if (planes.rank != rank) {
      return absl::InternalError(
          absl::StrCat("companion message: want planes of rank ", rank, ", got rank ", planes.rank));
    }
    memory.planes.push_back({std::move(packet.fds[0]), planes.bytes});
  }
  return memory;
}

bool Companion::IsLost(absl::Duration wait) const {
  pollfd fds[] = {{.fd = daemon_pidfd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = socket_.get(), .events = POLLRDHUP, .revents = 0}};
  return poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(wait))) > 0;
}

}  // namespace paramshard::internal
