#include "server/keeper/keeper_packet.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/keeper/keeper_message.h"

namespace paramshard::server {
namespace {

// Takes the descriptors of a packet; a truncated packet has fewer than were sent.
void TakeDescriptors(msghdr& message, std::vector<wire::FileDescriptor>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

// There is room for all descriptors that the kernel passes with a packet: missing ones could not be opened.
absl::Status CheckWhole(const msghdr& message, size_t fd_count) {
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeper message: want at most ", kMaxKeeperMessageBytes, " bytes, got more"));
  }
  if ((message.msg_flags & MSG_CTRUNC) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("keeper message: failed to open all of its descriptors, opened ",
                                                   fd_count, "; raise the limit of open files (ulimit -n)"));
}

absl::Status SendError(int error) {
  const std::string text = absl::StrCat("keeper socket: send: ", strerror(error));
  switch (error) {
    case EAGAIN:
    case EINTR:
      return absl::DeadlineExceededError(text);
    case ETOOMANYREFS:
    case ENOMEM:
    case ENOBUFS:
      return absl::ResourceExhaustedError(text);
    case EBADF:
    case EINVAL:
      return absl::InvalidArgumentError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace

absl::StatusOr<std::pair<wire::FileDescriptor, wire::FileDescriptor>> MakeKeeperSockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("keeper socket: make a pair: ", strerror(errno)));
  }
  return std::make_pair(wire::FileDescriptor(ends[0]), wire::FileDescriptor(ends[1]));
}

absl::Status SendKeeperPacket(int socket, absl::string_view bytes, absl::Span<const int> fds) {
  iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxKeeperMessageDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (fds.size() > kMaxKeeperMessageDescriptors) return SendError(EINVAL);
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus() : SendError(errno);
}

absl::StatusOr<KeeperPacket> ReceiveKeeperPacket(int socket) {
  KeeperPacket packet;
  packet.bytes.resize(kMaxKeeperMessageBytes);
  iovec vector{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxKeeperMessageDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  // The kernel reports once that the peer has ended with unread data; the peer's own packets follow.
  if (size < 0 && errno == ECONNRESET) size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return absl::DeadlineExceededError("keeper socket: no message");
  if (size < 0) return absl::UnavailableError(absl::StrCat("keeper socket: receive: ", strerror(errno)));
  TakeDescriptors(message, packet.fds);
  if (size == 0) return absl::UnavailableError("keeper socket: the peer has closed the connection");
  packet.bytes.resize(size);
  packet.whole = CheckWhole(message, packet.fds.size());
  return packet;
}

}  // namespace paramshard::server
