// Descriptors whose events one thread waits for.
#ifndef PARAMSHARD_SERVER_HANDOFF_WATCH_LIST_H_
#define PARAMSHARD_SERVER_HANDOFF_WATCH_LIST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// Owns an epoll instance. Every descriptor is added with a tag that its events carry.
class WatchList {
 public:
  static absl::StatusOr<WatchList> Create();

  // What is readable, has hung up or has an error is told until it is read or removed. RESOURCE_EXHAUSTED.
  absl::Status Add(int fd, uint64_t tag);
  // Before `fd` is closed: another process may hold the same open file, and its events would go on.
  void Remove(int fd);
  // Whether events of `fd`, which was added with `tag`, are told.
  void SetMuted(int fd, uint64_t tag, bool muted);

  int fd() const { return epoll_.get(); }

 private:
  explicit WatchList(wire::FileDescriptor epoll) : epoll_(std::move(epoll)) {}

  wire::FileDescriptor epoll_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_WATCH_LIST_H_
