// The one background thread of a session: it ends the session's page when the daemon goes away.
#ifndef PARAMSHARD_CLIENT_INTERNAL_DAEMON_WATCH_H_
#define PARAMSHARD_CLIENT_INTERNAL_DAEMON_WATCH_H_

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "client/internal/epoch_page.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::internal {

// Sleeps in poll() until the daemon dies or closes the companion socket, so that every waiter wakes
// at once: a thread in a futex as well as, on a GPU, a stream. Takes no CPU and no signals.
class DaemonWatch {
 public:
  // `page`, and the descriptors, outlive the watch.
  static absl::StatusOr<std::unique_ptr<DaemonWatch>> Start(const EpochPage* page, int daemon_pidfd,
                                                            int companion_socket);
  ~DaemonWatch();
  DaemonWatch(const DaemonWatch&) = delete;
  DaemonWatch& operator=(const DaemonWatch&) = delete;

 private:
  explicit DaemonWatch(wire::FileDescriptor stop) : stop_(std::move(stop)) {}

  wire::FileDescriptor stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_DAEMON_WATCH_H_
