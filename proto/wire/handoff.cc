#include "proto/wire/handoff.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paramshard::wire {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::Status SendHandoff(int socket, absl::Span<const uint8_t> bytes, absl::Span<const int> fds) {
  iovec vector{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxHandoffFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("handoff socket: send failed: ", strerror(errno)));
}

namespace {

void TakeDescriptors(msghdr& message, std::vector<FileDescriptor>& fds) {
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

absl::Status AwaitReadable(int socket, absl::Duration timeout) {
  pollfd poll_fd{.fd = socket, .events = POLLIN, .revents = 0};
  const int64_t milliseconds = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, INT32_MAX);
  const int ready = poll(&poll_fd, 1, static_cast<int>(milliseconds));
  if (ready > 0) return absl::OkStatus();
  if (ready < 0 && errno != EINTR) return absl::UnavailableError(absl::StrCat("handoff socket: ", strerror(errno)));
  return absl::DeadlineExceededError(absl::StrCat("handoff socket: no message within ", absl::FormatDuration(timeout)));
}

}  // namespace

absl::StatusOr<HandoffPacket> ReceiveHandoff(int socket, absl::Duration timeout) {
  if (absl::Status status = AwaitReadable(socket, timeout); !status.ok()) return status;
  HandoffPacket packet;
  packet.bytes.resize(kMaxHandoffBytes);
  iovec vector{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxHandoffFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return absl::UnavailableError(absl::StrCat("handoff socket: ", strerror(errno)));
  TakeDescriptors(message, packet.fds);
  if (size == 0) return absl::UnavailableError("handoff socket: the peer has closed the connection");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("handoff message: at most ", kMaxHandoffBytes, " bytes and ",
                                                   kMaxHandoffFds, " descriptors expected, got more"));
  }
  packet.bytes.resize(size);
  return packet;
}

absl::Status CheckHandoff(const HandoffPacket& packet, HandoffKind kind, size_t size_bytes, int fd_count) {
  HandoffHeader header{};
  if (packet.bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handoff message: at least ", sizeof(header), " bytes expected, got ", packet.bytes.size()));
  }
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  const auto wrong = [](absl::string_view field, auto expected, auto got) {
    return absl::InvalidArgumentError(absl::StrCat("handoff message: ", field, " ", expected, " expected, got ", got));
  };
  if (header.magic != kHandoffMagic) return wrong("magic", kHandoffMagic, header.magic);
  if (header.version != kHandoffVersion) return wrong("version", kHandoffVersion, header.version);
  if (header.kind != kind) return wrong("kind", static_cast<uint32_t>(kind), static_cast<uint32_t>(header.kind));
  if (packet.bytes.size() != size_bytes) return wrong("size", size_bytes, packet.bytes.size());
  if (header.size_bytes != size_bytes) return wrong("stated size", size_bytes, header.size_bytes);
  if (packet.fds.size() != static_cast<size_t>(fd_count)) return wrong("descriptors", fd_count, packet.fds.size());
  return absl::OkStatus();
}

}  // namespace paramshard::wire
