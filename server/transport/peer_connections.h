// With which certificates connections were made, and which of them are over before their ends close them.
#ifndef PARAMSHARD_SERVER_TRANSPORT_PEER_CONNECTIONS_H_
#define PARAMSHARD_SERVER_TRANSPORT_PEER_CONNECTIONS_H_

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/log/log_throttle.h"
#include "server/transport/deny_list.h"

namespace paramshard::server {

// The connections of one server. gRPC tells with each call which connection it came on and what certificate that was
// made with; whoever has the sockets asks which of them are over, and ends those. Thread-safe.
//
// When a certificate ends is fixed at the first call of a connection and does not move with the machine's clock: a
// clock that jumps ends nothing.
class PeerConnections {
 public:
  struct Options {
    std::shared_ptr<DenyList> denied = nullptr;  // null: nobody is
    const Clock& clock = Clock::Steady();
    std::function<absl::Time()> now = [] { return absl::Now(); };
  };
  explicit PeerConnections(Options options) : options_(std::move(options)) {}

  // A connection begins from `address`, as grpc::ServerContext::peer writes it. What was known of another one from
  // there is forgotten.
  void Begin(const std::string& address);
  // A call has come from there, on a connection with that certificate (PEM). UNAUTHENTICATED as Check.
  absl::Status OnCall(const std::string& address, const std::string& certificate);
  // UNAUTHENTICATED the connection is over: says why; or none has begun from there, and nobody could end it. OK of one
  // that has had no call.
  absl::Status Check(const std::string& address) const;
  // Whether a call has come from there since then.
  bool HasHadCall(const std::string& address) const;
  // Forgets all others, which are closed.
  void KeepOnly(const std::set<std::string>& addresses);

  // Has gRPC tell OnCall of every call, and cancels those on connections that are over. For ServerBuilder.
  static std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> Interceptors(
      std::shared_ptr<PeerConnections> connections);

 private:
  struct Peer {
    std::string certificate;
    std::vector<std::string> uris;
    SteadyTime end;  // of the certificate
  };

  absl::StatusOr<Peer> Describe(const std::string& certificate) const;
  absl::Status Check(const Peer& peer) const;

  const Options options_;
  ThrottledLog log_;
  mutable absl::Mutex mu_;
  // By address; without a value those who have had no call.
  std::map<std::string, std::optional<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRANSPORT_PEER_CONNECTIONS_H_
