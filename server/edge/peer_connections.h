// Book of connections with their certificates, which tells the connections that must be closed.
#ifndef PARAMSHARD_SERVER_EDGE_PEER_CONNECTIONS_H_
#define PARAMSHARD_SERVER_EDGE_PEER_CONNECTIONS_H_

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
#include "server/edge/deny_list.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {

// The connections of one server. gRPC reports the connection of each call and its certificate; the owner of the sockets
// asks which connections must be closed. Thread-safe.
//
// The end of a certificate is fixed at a connection's first call by the steady clock, so that a jump of the machine's
// clock closes nothing.
class PeerConnections {
 public:
  struct Options {
    std::shared_ptr<DenyList> denied = nullptr;  // null: none
    const Clock& clock = Clock::Steady();
    std::function<absl::Time()> now = [] { return absl::Now(); };
  };
  explicit PeerConnections(Options options) : options_(std::move(options)) {}

  // A connection begins from `address`, in the form of grpc::ServerContext::peer. Replaces an earlier connection from
  // there.
  void Begin(const std::string& address);
  // A call has come from `address`, on a connection with that certificate (PEM). UNAUTHENTICATED as Check.
  absl::Status OnCall(const std::string& address, const std::string& certificate);
  // UNAUTHENTICATED the connection must be closed (the message says why), or no connection has begun from `address`. OK
  // for a connection without a call.
  absl::Status Check(const std::string& address) const;
  // Returns true if the connection from `address` has had a call.
  bool HasHadCall(const std::string& address) const;
  // Forgets all other connections, which are closed.
  void KeepOnly(const std::set<std::string>& addresses);

  // Return interceptors for ServerBuilder, which report every call to OnCall and cancel calls that it rejects.
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
  // By address; null before the first call.
  std::map<std::string, std::optional<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_PEER_CONNECTIONS_H_
