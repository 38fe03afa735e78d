// gRPC servers of one set of services, and the acceptor of their connections.
#ifndef PARAMSHARD_SERVER_PROCESS_GRPC_SERVERS_H_
#define PARAMSHARD_SERVER_PROCESS_GRPC_SERVERS_H_

#include <grpcpp/impl/service_type.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/user_quota.h"
#include "server/edge/peer_connections.h"
#include "server/process/connection_acceptor.h"

namespace paramshard::server {

// One server for each user, so that users do not share gRPC's memory. Limits what a caller can make gRPC hold.
// Move-only.
class GrpcServers {
 public:
  // Tells if clients answer pings. A gRPC client does so only while one of its threads waits for a call: daemons always
  // have such a thread; trainers and tools do not.
  enum class Pings : uint8_t { kAreAnswered, kAreNot };

  struct Options {
    std::vector<ListeningSocket> sockets;
    std::set<UserQuota::User> users;  // no user: callers over TCP
    // Credentials and connections of callers over TCP.
    std::shared_ptr<grpc::ServerCredentials> credentials;
    std::shared_ptr<PeerConnections> connections;  // null without certificates
    std::vector<grpc::Service*> services;          // outlive the servers
    int max_threads = 0;                           // that gRPC starts for each user
    Pings pings = Pings::kAreNot;
  };
  static absl::StatusOr<GrpcServers> Start(Options options);
  GrpcServers() = default;  // none

  // Sets the health of a service; "" is the daemon.
  void SetHealth(const std::string& service, bool serving) const;
  void SetHealth(bool serving) const;  // of all
  // Accepts no connection any more, and ends the servers. Idempotent.
  void Stop();

 private:
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // destroyed before the servers
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_GRPC_SERVERS_H_
