// Set of descriptors whose events one thread waits for.
#ifndef PARAMSHARD_SERVER_EDGE_WATCH_LIST_H_
#define PARAMSHARD_SERVER_EDGE_WATCH_LIST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Owns an epoll instance. Events of a descriptor carry the tag that it was added with.
class WatchList {
 public:
  static absl::StatusOr<WatchList> Create();

  // Adds a descriptor. Input, a hang-up or an error is reported until it is read or removed. RESOURCE_EXHAUSTED.
  absl::Status Add(int fd, uint64_t tag);
  // Call it before `fd` is closed: another process may hold the same open file, and its events would continue.
  void Remove(int fd);
  // Stops or resumes events of `fd`, which was added with `tag`.
  void SetMuted(int fd, uint64_t tag, bool muted);

  int fd() const { return epoll_.get(); }

 private:
  explicit WatchList(wire::FileDescriptor epoll) : epoll_(std::move(epoll)) {}

  wire::FileDescriptor epoll_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_WATCH_LIST_H_
