#include "server/data_plane/link_check.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

// Interval between looks for an abort.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// Duration of an attempt. The kernel resends a lost packet after one second, then after two: a new attempt is sooner.
constexpr absl::Duration kAttempt = absl::Seconds(2);
constexpr absl::Duration kPause = absl::Seconds(1);  // after an attempt that fails at once

struct AddressInfoDeleter {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};
using AddressInfo = std::unique_ptr<addrinfo, AddressInfoDeleter>;

// Returns null if it is not an address.
AddressInfo Parse(const std::string& ip, const std::string& port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(ip.c_str(), port.c_str(), &hints, &found) != 0) return nullptr;
  return AddressInfo(found);
}

absl::StatusOr<std::string> PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  char port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) != 0) {
    return absl::UnavailableError(absl::StrCat("failed to read the port of a socket: ", std::strerror(errno)));
  }
  return std::string(port);
}

// Attempts to reach one peer, until it is reached.
class Attempts {
 public:
  explicit Attempts(const LinkPeer& peer)
      : peer_(peer), address_(Parse(IpOf(peer.address), peer.address.substr(peer.address.rfind(':') + 1))) {
    if (address_ == nullptr) why_ = absl::StrCat("invalid address: ", peer.address);
  }

  const LinkPeer& peer() const { return peer_; }
  bool reached() const { return reached_; }
  // Socket of the attempt in progress, or -1.
  int fd() const { return fd_.get(); }
  const std::string& why() const { return why_; }

  // Begins another attempt when it is due. RESOURCE_EXHAUSTED
  absl::Status Try(SteadyTime now) {
    if (reached_ || address_ == nullptr || now < next_at_) return absl::OkStatus();
    fd_ = wire::FileDescriptor(socket(address_->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) {
      return absl::ResourceExhaustedError(absl::StrCat("failed to open a socket for a link: ", std::strerror(errno)));
    }
    next_at_ = now + absl::ToChronoNanoseconds(kAttempt);
    const int error = connect(fd_.get(), address_->ai_addr, address_->ai_addrlen) == 0 ? 0 : errno;
    if (error != EINPROGRESS) Finish(error, now);
    return absl::OkStatus();
  }

  // Ends the attempt.
  void Finish(SteadyTime now) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    Finish(error, now);
  }

 private:
  void Finish(int error, SteadyTime now) {
    fd_.Reset();
    reached_ = error == 0;
    if (reached_) return;
    why_ = std::strerror(error);
    next_at_ = now + absl::ToChronoNanoseconds(kPause);
  }

  const LinkPeer peer_;
  const AddressInfo address_;
  wire::FileDescriptor fd_;
  SteadyTime next_at_;
  bool reached_ = false;
  std::string why_ = "no answer";
};

bool AllReached(const std::vector<Attempts>& all) {
  return std::all_of(all.begin(), all.end(), [](const Attempts& one) { return one.reached(); });
}

// Waits until an attempt ends, a connection comes, or it is time for the next look. `is_drained`: no connections were
// left before; else those that cannot be accepted would end every wait at once.
void AwaitAttempts(const LinkListener& self, std::vector<Attempts>& all, bool& is_drained) {
  std::vector<pollfd> polled{{.fd = is_drained ? self.fd() : -1, .events = POLLIN, .revents = 0}};
  for (const Attempts& one : all) polled.push_back({.fd = one.fd(), .events = POLLOUT, .revents = 0});
  const int ready = poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(kTick)));
  if (polled[0].revents != 0 || !is_drained) is_drained = self.Drain();
  if (ready <= 0) return;
  const SteadyTime now = SteadyNow();
  for (size_t i = 0; i < all.size(); ++i) {
    if (polled[i + 1].revents != 0) all[i].Finish(now);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LinkListener>> LinkListener::Start(const std::string& ip) {
  const AddressInfo info = Parse(ip, "0");
  if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat("data address: want an IP address, got ", ip));
  wire::FileDescriptor fd(socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(
        absl::StrCat("data address ", ip, ": failed to listen, want an address of this host: ", std::strerror(errno)));
  }
  ASSIGN_OR_RETURN(const std::string port, PortOf(fd.get()));
  return std::shared_ptr<const LinkListener>(new LinkListener(std::move(fd), absl::StrCat(ip, ":", port)));
}

bool LinkListener::Drain() const {
  while (wire::FileDescriptor(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid()) {
  }
  return errno == EAGAIN;
}

std::string IpOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::StatusOr<std::vector<UnreachedPeer>> CheckLinks(const LinkListener& self, absl::Span<const LinkPeer> peers,
                                                      absl::Duration timeout, const ConnectAbort* abort) {
  bool is_drained = self.Drain();
  std::vector<Attempts> all(peers.begin(), peers.end());
  // Time during which this process was stopped does not count.
  absl::Duration tried;
  for (SteadyTime before = SteadyNow(); !AllReached(all) && tried < timeout;) {
    if (abort != nullptr) RETURN_IF_ERROR(abort->status());
    for (Attempts& one : all) RETURN_IF_ERROR(one.Try(before));
    AwaitAttempts(self, all, is_drained);
    const SteadyTime now = SteadyNow();
    tried += std::min(absl::FromChrono(now - std::exchange(before, now)), 2 * kTick);
  }
  std::vector<UnreachedPeer> unreached;
  for (const Attempts& one : all) {
    if (!one.reached()) unreached.push_back({one.peer(), one.why()});
  }
  return unreached;
}

absl::Status Links::Check(absl::Duration timeout, const ConnectAbort* abort) {
  const absl::MutexLock alone(&checking_);
  std::vector<LinkPeer> peers;
  {
    absl::MutexLock lock(&mu_);
    peers = peers_;
  }
  if (listener_ == nullptr || peers.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<UnreachedPeer> unreached, CheckLinks(*listener_, peers, timeout, abort));
  if (unreached.empty()) return absl::OkStatus();
  const std::string self = IpOf(listener_->address());
  std::vector<std::string> texts;
  absl::MutexLock lock(&mu_);
  bad_.clear();
  for (const auto& [peer, why] : unreached) {
    texts.push_back(absl::StrCat("node ", peer.node, " (", IpOf(peer.address), "): ", why));
    bad_.push_back({.peer = peer.node, .address = self, .peer_address = IpOf(peer.address)});
  }
  return absl::UnavailableError(absl::StrCat("node ", node_, " (", self, ") cannot reach ", absl::StrJoin(texts, ", "),
                                             "; gave up after ",
                                             absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1)))));
}

}  // namespace paramshard::server
