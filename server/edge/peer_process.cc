#include "server/edge/peer_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<PeerCredentials> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("companion socket: peer credentials: ", strerror(errno)));
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid};
}

namespace {

// Returns the kernel's description of an open descriptor, in lines of `key:	value`.
absl::StatusOr<std::string> DescriptorInfo(int fd) {
  const wire::FileDescriptor file(open(absl::StrCat("/proc/self/fdinfo/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t size = file.valid() ? read(file.get(), text, sizeof(text)) : -1;
  if (size >= 0) return std::string(text, size);
  // ENOENT: the descriptor is invalid. Otherwise no descriptor is free to open /proc.
  const absl::StatusCode code =
      errno == ENOENT ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kResourceExhausted;
  return absl::Status(code,
                      absl::StrCat("companion hello: failed to read the pidfd's /proc/self/fdinfo: ", strerror(errno)));
}

}  // namespace

absl::Status CheckPidfd(int pidfd, pid_t pid) {
  ASSIGN_OR_RETURN(const std::string info, DescriptorInfo(pidfd));
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    int64_t value = 0;
    if (!absl::ConsumePrefix(&line, "Pid:") || !absl::SimpleAtoi(line, &value)) continue;
    if (value == pid) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("companion hello: want a pidfd of process ", pid, ", got one of process ", value));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("companion hello: want a pidfd of process ", pid, ", got another kind of descriptor"));
}

absl::Status CheckMaySignal(int pidfd) {
  if (syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("pidfd_send_signal: ", strerror(errno),
                                                    "; want Linux 5.3 or newer, and a seccomp profile that allows it"));
}

absl::StatusOr<wire::FileDescriptor> OwnPidfd() {
  wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (pidfd.valid()) return pidfd;
  const bool too_old = errno == ENOSYS;
  return absl::Status(too_old ? absl::StatusCode::kUnimplemented : absl::StatusCode::kResourceExhausted,
                      absl::StrCat("pidfd_open: ", strerror(errno), "; want ",
                                   too_old          ? "Linux 5.3 or newer"
                                   : errno == EPERM ? "a seccomp profile that allows it"
                                                    : "a free file descriptor"));
}

}  // namespace paramshard::server
