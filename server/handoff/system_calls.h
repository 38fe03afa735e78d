// What the companion thread asks the kernel for and may be refused, so that tests can refuse it.
#ifndef PARAMSHARD_SERVER_HANDOFF_SYSTEM_CALLS_H_
#define PARAMSHARD_SERVER_HANDOFF_SYSTEM_CALLS_H_

#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/types/span.h"

namespace paramshard::server {

// Results and errno are those of the calls that are named.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  // accept4, without blocking.
  virtual int Accept(int listener) { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }
  // epoll_wait; a negative timeout waits for as long as it takes.
  virtual int Wait(int epoll, absl::Span<epoll_event> events, int timeout_milliseconds) {
    return epoll_wait(epoll, events.data(), static_cast<int>(events.size()), timeout_milliseconds);
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_SYSTEM_CALLS_H_
