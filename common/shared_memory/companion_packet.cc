#include "common/shared_memory/companion_packet.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"

namespace paramshard::wire {

absl::Status SendCompanionPacket(int socket, absl::Span<const uint8_t> bytes, absl::Span<const int> fds) {
  iovec vector{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  // Not limited to kMaxCompanionFds: the receiver checks the number.
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  const bool exhausted = errno == ETOOMANYREFS || errno == ENOMEM || errno == ENOBUFS;
  return absl::Status(exhausted ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                      absl::StrCat("companion socket: send failed: ", strerror(errno)));
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

// Returns INVALID_ARGUMENT or RESOURCE_EXHAUSTED if the kernel has truncated the packet.
absl::Status CheckWhole(const msghdr& message, size_t fd_count) {
  if ((message.msg_flags & MSG_CTRUNC) != 0 && fd_count < kMaxCompanionFds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("companion message: opened only ", fd_count,
                     " of its descriptors; this process is out of file descriptors (ulimit -n)"));
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("companion message: want at most ", kMaxCompanionBytes, " bytes and ",
                                                 kMaxCompanionFds, " descriptors, got more"));
}

// Returns the next packet without waiting. DEADLINE_EXCEEDED if there is none.
absl::StatusOr<CompanionPacket> TakePacket(int socket) {
  CompanionPacket packet;
  packet.bytes.resize(kMaxCompanionBytes);
  iovec vector{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxCompanionFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR))
    return absl::DeadlineExceededError("companion socket: no message");
  if (size < 0) return absl::UnavailableError(absl::StrCat("companion socket: ", strerror(errno)));
  TakeDescriptors(message, packet.fds);
  if (size == 0) return absl::UnavailableError("companion socket: the peer has closed the connection");
  if (absl::Status status = CheckWhole(message, packet.fds.size()); !status.ok()) return status;
  packet.bytes.resize(size);
  return packet;
}

// Rounds up, so that a wait of less than a millisecond is still a wait.
int PollTimeout(absl::Duration left) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0,
                                              std::numeric_limits<int>::max()));
}

}  // namespace

absl::StatusOr<CompanionPacket> ReceiveCompanionPacket(int socket, absl::Duration timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (true) {
    absl::StatusOr<CompanionPacket> packet = TakePacket(socket);
    const absl::Duration left = timeout - absl::FromChrono(Clock::now() - start);
    if (!absl::IsDeadlineExceeded(packet.status())) return packet;
    if (left <= absl::ZeroDuration()) break;
    pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, PollTimeout(left)) < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("companion socket: ", strerror(errno)));
    }
  }
  return absl::DeadlineExceededError(
      absl::StrCat("companion socket: timed out after ", absl::FormatDuration(timeout), " waiting for a message"));
}

void RefuseCompanion(int socket, const absl::Status& why) {
  CompanionRefusal refusal{};
  refusal.code = static_cast<uint32_t>(why.code());
  const absl::string_view reason = why.message().substr(0, sizeof(refusal.reason) - 1);
  std::copy(reason.begin(), reason.end(), refusal.reason);
  // An error is ignored: a peer that has closed does not need the reason.
  (void)SendCompanionPacket(socket, CompanionBytes(refusal), {});
  // Closing a socket with unread packets resets the connection, and the peer would read that instead of the refusal.
  // No packet arrives after the shutdown, so the queue stays empty.
  shutdown(socket, SHUT_RDWR);
  char ignored;
  while (recv(socket, &ignored, sizeof(ignored), MSG_DONTWAIT) > 0) {
  }
}

std::optional<absl::Status> RefusalIn(const CompanionPacket& packet) {
  const auto refusal = ParseCompanionPacket<CompanionRefusal>(packet, CompanionKind::kRefusal, 0);
  if (!refusal.ok()) return std::nullopt;
  const bool known = refusal->code > 0 && refusal->code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(refusal->code) : absl::StatusCode::kUnknown,
                      std::string(refusal->reason, strnlen(refusal->reason, sizeof(refusal->reason))));
}

absl::Status CheckCompanionPacket(const CompanionPacket& packet, CompanionKind kind, size_t size_bytes, int fd_count) {
  CompanionHeader header{};
  if (packet.bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("companion message: want at least ", sizeof(header), " bytes, got ", packet.bytes.size()));
  }
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  const auto wrong = [](absl::string_view field, auto expected, auto got) {
    return absl::InvalidArgumentError(absl::StrCat("companion message: want ", field, " ", expected, ", got ", got));
  };
  if (header.magic != kCompanionMagic) return wrong("magic", kCompanionMagic, header.magic);
  if (header.version != kCompanionVersion) return wrong("version", kCompanionVersion, header.version);
  if (header.kind != kind) return wrong("kind", static_cast<uint32_t>(kind), static_cast<uint32_t>(header.kind));
  if (packet.bytes.size() != size_bytes) return wrong("size", size_bytes, packet.bytes.size());
  if (header.size_bytes != size_bytes) return wrong("stated size", size_bytes, header.size_bytes);
  if (packet.fds.size() != static_cast<size_t>(fd_count)) return wrong("descriptors", fd_count, packet.fds.size());
  return absl::OkStatus();
}

}  // namespace paramshard::wire
