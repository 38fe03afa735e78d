#include "client/internal/daemon_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/internal/blocked_signals.h"

namespace paramshard::internal {
namespace {

// A dying process closes its sockets before its pidfd becomes readable, some hundred milliseconds before if it has
// memory of GPUs. A daemon whose pidfd is not readable after this wait is alive.
constexpr int kDeathAfterCloseMilliseconds = 3000;

void Watch(const EpochPage* page, int daemon_pidfd, int companion_socket, int stop) {
  pollfd fds[] = {{.fd = stop, .events = POLLIN, .revents = 0},
                  {.fd = daemon_pidfd, .events = POLLIN, .revents = 0},
                  {.fd = companion_socket, .events = POLLRDHUP, .revents = 0}};
  while (poll(fds, 3, -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents != 0) return;
  if (fds[1].revents == 0) poll(&fds[1], 1, kDeathAfterCloseMilliseconds);
  if (page->EndIfDaemonDied()) return;
  page->End(absl::UnavailableError("the daemon closed the session's companion connection"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonWatch>> DaemonWatch::Start(const EpochPage* page, int daemon_pidfd,
                                                                int companion_socket) {
  wire::FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return absl::ResourceExhaustedError(absl::StrCat("session: eventfd: ", strerror(errno)));
  std::unique_ptr<DaemonWatch> watch(new DaemonWatch(std::move(stop)));
  const BlockedSignals blocked;
  try {
    watch->thread_ = std::thread(Watch, page, daemon_pidfd, companion_socket, watch->stop_.get());
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("session: failed to start a thread: ", error.what()));
  }
  return watch;
}

DaemonWatch::~DaemonWatch() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace paramshard::internal
