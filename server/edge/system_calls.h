// System calls of threads that accept connections: a seam where tests make them fail.
#ifndef PARAMSHARD_SERVER_EDGE_SYSTEM_CALLS_H_
#define PARAMSHARD_SERVER_EDGE_SYSTEM_CALLS_H_

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/kill_process.h"
#include "server/edge/peer_process.h"

namespace paramshard::server {

// Functions return the results of the named system calls, and set errno.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  // accept4, without blocking.
  virtual int Accept(int listener) { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }
  // fcntl, F_DUPFD_CLOEXEC.
  virtual int Duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }
  // SO_PEERCRED.
  virtual absl::StatusOr<PeerCredentials> Credentials(int socket) { return CredentialsOf(socket); }
  virtual absl::Status Kill(int pidfd) { return KillProcess(pidfd); }
  // epoll_wait; a negative timeout waits without limit.
  virtual int Wait(int epoll, absl::Span<epoll_event> events, int timeout_milliseconds) {
    return epoll_wait(epoll, events.data(), static_cast<int>(events.size()), timeout_milliseconds);
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_SYSTEM_CALLS_H_
