#include "server/edge/watch_list.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace paramshard::server {

absl::StatusOr<WatchList> WatchList::Create() {
  wire::FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (epoll.valid()) return WatchList(std::move(epoll));
  return absl::ResourceExhaustedError(absl::StrCat("failed to watch companion connections: ", strerror(errno)));
}

absl::Status WatchList::Add(int fd, uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("failed to watch a companion connection: ", strerror(errno)));
}

void WatchList::Remove(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void WatchList::SetMuted(int fd, uint64_t tag, bool muted) {
  epoll_event event{.events = muted ? 0U : EPOLLIN, .data = {.u64 = tag}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

}  // namespace paramshard::server
