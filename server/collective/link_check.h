// Finds the daemons that this one cannot reach over the data network.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_LINK_CHECK_H_
#define PARAMSHARD_SERVER_COLLECTIVE_LINK_CHECK_H_

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
#include "proto/wire/handoff.h"
#include "server/collective/connect_abort.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Where others try whether they reach this daemon: whoever connects has. It lives as long as the daemon, not as an epoch:
// one that tries late, because it was stopped for a while, would hold a daemon that is through for one that it cannot
// reach. Thread-safe.
class LinkListener {
 public:
  // Listens at this IP of this host. INVALID_ARGUMENT no IP; UNAVAILABLE not one of this host.
  static absl::StatusOr<std::shared_ptr<const LinkListener>> Start(const std::string& ip);

  // "10.9.0.11:41234"
  const std::string& address() const { return address_; }
  // Readable while somebody has come.
  int fd() const { return fd_.get(); }
  // Lets those go who have come: others could come no more at last. False when some may stay, for want of a
  // descriptor.
  bool Drain() const;

 private:
  LinkListener(wire::FileDescriptor fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}

  // Constant after construction.
  const wire::FileDescriptor fd_;
  const std::string address_;
};

// Without the port: "10.9.0.11"
std::string IpOf(const std::string& address);

struct LinkPeer {
  int node = 0;
  std::string address = {};  // of its listener
};

struct UnreachedPeer {
  LinkPeer peer = {};
  std::string why = {};  // what the last attempt came to
};

// How long daemons try to reach each other. A link that is gone for less ends no epoch.
inline constexpr absl::Duration kLinkPatience = absl::Seconds(10);
// How often they do while an epoch runs.
inline constexpr absl::Duration kLinkInterval = absl::Seconds(10);

// Connects to all peers at the same time, and to each again and again until it is reached, for at most `patience` of the
// time that this process runs. Returns those that were not reached: it has tried them all along. Errors: what the abort
// (may be null) says, within a second; RESOURCE_EXHAUSTED no descriptors.
absl::StatusOr<std::vector<UnreachedPeer>> CheckLinks(const LinkListener& self, absl::Span<const LinkPeer> peers,
                                                      absl::Duration patience, const ConnectAbort* abort);

// This daemon's links to the others that take part in an epoch. Thread-safe; checks wait for each other.
class Links {
 public:
  // Without a listener nothing is ever checked.
  Links(int node, std::shared_ptr<const LinkListener> listener) : node_(node), listener_(std::move(listener)) {}

  const LinkListener* listener() const { return listener_.get(); }
  void SetPeers(std::vector<LinkPeer> peers) {
    absl::MutexLock lock(&mu_);
    peers_ = std::move(peers);
  }

  // As CheckLinks; nothing before there are peers. UNAVAILABLE naming all that were not reached, which are the bad ones
  // from then on.
  absl::Status Check(absl::Duration patience, const ConnectAbort* abort);
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

#endif  // PARAMSHARD_SERVER_COLLECTIVE_LINK_CHECK_H_
