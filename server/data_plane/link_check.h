// Check of the links from this daemon to others over the data network.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_LINK_CHECK_H_
#define PARAMSHARD_SERVER_DATA_PLANE_LINK_CHECK_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/data_plane/connect_abort.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Listener to which other daemons connect to check their link to this one. It lives as long as the daemon, not as an
// epoch: a daemon that checks late, because it was stopped for a while, must not take a daemon that has finished for an
// unreachable one. Thread-safe.
class LinkListener {
 public:
  // Listens at this IP of this host. INVALID_ARGUMENT not an IP; UNAVAILABLE not an address of this host.
  static absl::StatusOr<std::shared_ptr<const LinkListener>> Start(const std::string& ip);

  // "10.9.0.11:41234"
  const std::string& address() const { return address_; }
  // Readable while connections wait.
  int fd() const { return fd_.get(); }
  // Accepts and closes waiting connections, so that the backlog does not fill up. Returns false if some may remain
  // because there is no free descriptor.
  bool Drain() const;

 private:
  LinkListener(wire::FileDescriptor fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}

  // Constant after construction.
  const wire::FileDescriptor fd_;
  const std::string address_;
};

// Returns the address without the port: "10.9.0.11".
std::string IpOf(const std::string& address);

struct LinkPeer {
  int node = 0;
  std::string address = {};  // of its listener
};

struct UnreachedPeer {
  LinkPeer peer = {};
  std::string why = {};  // result of the last attempt
};

// How long daemons try to reach each other. A shorter outage of a link ends no epoch.
inline constexpr absl::Duration kLinkTimeout = absl::Seconds(10);
// Interval between checks while an epoch runs.
inline constexpr absl::Duration kLinkInterval = absl::Seconds(10);

// Connects to all peers at the same time, and retries each until it is reached, for at most `timeout` of this
// process's running time. Returns the peers that were not reached. Errors: the status of the abort (may be null),
// within a second; RESOURCE_EXHAUSTED no descriptors.
absl::StatusOr<std::vector<UnreachedPeer>> CheckLinks(const LinkListener& self, absl::Span<const LinkPeer> peers,
                                                      absl::Duration timeout, const ConnectAbort* abort);

// This daemon's links to the other daemons of an epoch. Thread-safe; only one check runs at a time.
class Links {
 public:
  // Without a listener no link is checked.
  Links(int node, std::shared_ptr<const LinkListener> listener) : node_(node), listener_(std::move(listener)) {}

  const LinkListener* listener() const { return listener_.get(); }
  void SetPeers(std::vector<LinkPeer> peers) {
    absl::MutexLock lock(&mu_);
    peers_ = std::move(peers);
  }

  // Runs CheckLinks; does nothing before there are peers. UNAVAILABLE naming all peers that were not reached, which
  // bad() returns from then on.
  absl::Status Check(absl::Duration timeout, const ConnectAbort* abort);
  std::vector<BadLink> bad() const {
    absl::MutexLock lock(&mu_);
    return bad_;
  }

 private:
  const int node_;
  const std::shared_ptr<const LinkListener> listener_;

  absl::Mutex checking_;  // before mu_
  mutable absl::Mutex mu_;
  std::vector<LinkPeer> peers_ ABSL_GUARDED_BY(mu_);
  std::vector<BadLink> bad_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_LINK_CHECK_H_
