#include "tests/server/edge/companion_client.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<CompanionClient> CompanionClient::Connect(const std::string& path) {
  wire::FileDescriptor descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy_n(path.data(), std::min(path.size(), sizeof(address.sun_path) - 1), address.sun_path);
  if (connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return CompanionClient(std::move(descriptor));
  }
  return absl::UnavailableError(absl::StrCat("connect: ", strerror(errno)));
}

absl::StatusOr<std::string> CompanionClient::SayHello(pid_t process) {
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process == 0 ? getpid() : process, 0)));
  // A client that is rejected before its hello can still read the reason.
  const absl::Status sent = Send(wire::CompanionBytes(wire::CompanionHello{}), {pidfd.get()});
  const absl::StatusOr<wire::CompanionPacket> packet = Receive();
  if (!packet.ok()) return sent.ok() ? packet.status() : sent;
  if (const auto refusal = wire::RefusalIn(*packet); refusal.has_value()) return *refusal;
  ASSIGN_OR_RETURN(const auto welcome,
                   wire::ParseCompanionPacket<wire::CompanionWelcome>(*packet, wire::CompanionKind::kWelcome, 1));
  return std::string(welcome.token, wire::kTokenBytes);
}

absl::Status CompanionClient::Send(absl::Span<const uint8_t> bytes, absl::Span<const int> fds) const {
  return wire::SendCompanionPacket(socket(), bytes, fds);
}

absl::StatusOr<wire::CompanionPacket> CompanionClient::Receive(absl::Duration timeout) const {
  return wire::ReceiveCompanionPacket(socket(), timeout);
}

absl::Status CompanionClient::ReceiveRefusal() const {
  ASSIGN_OR_RETURN(const wire::CompanionPacket packet, Receive());
  return wire::RefusalIn(packet).value_or(absl::OkStatus());
}

bool CompanionClient::AwaitClosed() const {
  while (true) {
    const absl::StatusOr<wire::CompanionPacket> packet = Receive();
    if (!packet.ok()) return absl::IsUnavailable(packet.status());
  }
}

}  // namespace paramshard::server
