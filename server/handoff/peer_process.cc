#include "server/handoff/peer_process.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace paramshard::server {

absl::StatusOr<PeerCredentials> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("handoff socket: peer credentials: ", strerror(errno)));
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid};
}

absl::Status CheckPidfd(int pidfd, pid_t pid) {
  std::ifstream info(absl::StrCat("/proc/self/fdinfo/", pidfd));
  std::string key;
  int64_t value = 0;
  std::string rest;
  while (info >> key) {
    if (key == "Pid:" && info >> value) {
      if (value == pid) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("handoff hello: a pidfd of process ", pid, " expected, got one of process ", value));
    }
    std::getline(info, rest);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("handoff hello: a pidfd of process ", pid, " expected, got another kind of descriptor"));
}

absl::Status KillProcess(int pidfd) {
  if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 || errno == ESRCH) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("kill the rank's holder: ", strerror(errno)));
}

absl::StatusOr<wire::FileDescriptor> OwnPidfd() {
  wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (pidfd.valid()) return pidfd;
  return absl::UnimplementedError(absl::StrCat("pidfd_open: Linux 5.3 or newer expected, got: ", strerror(errno)));
}

}  // namespace paramshard::server
