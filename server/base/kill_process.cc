#include "server/base/kill_process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paramshard::server {

absl::Status KillProcess(int pidfd) {
  if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 || errno == ESRCH) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("failed to kill the process: ", strerror(errno)));
}

}  // namespace paramshard::server
