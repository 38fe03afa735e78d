// Acceptor of connections for gRPC servers.
#ifndef PARAMSHARD_SERVER_PROCESS_CONNECTION_ACCEPTOR_H_
#define PARAMSHARD_SERVER_PROCESS_CONNECTION_ACCEPTOR_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/user_quota.h"
#include "server/edge/listening_path.h"
#include "server/edge/peer_connections.h"
#include "server/edge/system_calls.h"
#include "server/observe/log_throttle.h"

namespace paramshard::server {

// A listening socket: on TCP, or at a path.
struct ListeningSocket {
  wire::FileDescriptor tcp;
  int port = 0;                         // of TCP
  std::unique_ptr<ListeningPath> path;  // a Unix socket, whose peers have user ids

  int fd() const { return path == nullptr ? tcp.get() : path->fd(); }
};

// Listens at `HOST:PORT`, on every address of the host; port 0 picks one free port for all. Returns at least one
// socket. UNAVAILABLE.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnAddress(const std::string& address);
// FAILED_PRECONDITION if no socket can be bound on the host of `HOST:PORT` at any port. OK for an unknown name, which
// may become known later.
absl::Status CheckIsLocal(const std::string& address);

// gRPC's own listener stops for good when there is no descriptor for a connection, and does not check users. This one
// waits for a free descriptor, and closes connections
//
// - of users without a server;
// - of users other than the daemon's own that exceed their share;
// - that would take the last quarter of all descriptors, which the daemon needs for memory and for present clients.
//
// Each user has its own server, and so its own memory quota of gRPC: at the quota's limit gRPC cancels calls, of any
// user of the server.
//
// It closes connections over TCP that `peers` rejects. When their share is used up, a new connection replaces the
// oldest one without a call: clients without a certificate can connect, but block no others.
//
// One thread, which also restores its Unix sockets' paths.
class ConnectionAcceptor {
 public:
  struct Options {
    // Limit, of which other users and callers over TCP have their shares (UserQuota).
    int max_connections = 8192;
    // Must outlive the acceptor. Null: the kernel's.
    SystemCalls* system = nullptr;
    // Book of connections over TCP; null: the acceptor closes none of them.
    std::shared_ptr<PeerConnections> peers = nullptr;
  };

  ConnectionAcceptor(std::vector<ListeningSocket> sockets, Options options);
  // Must be destroyed before the servers.
  ~ConnectionAcceptor();

  // Registers the server that `builder` builds next for the user's connections; no user: for connections over TCP.
  void AddServer(UserQuota::User user, grpc::ServerBuilder& builder,
                 const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Called once the servers are built. RESOURCE_EXHAUSTED.
  absl::Status Start();

 private:
  using Server = grpc::experimental::ExternalConnectionAcceptor;
  // A connection that was passed to gRPC, which may have closed it.
  struct Held {
    UserQuota::User user;
    uint64_t cookie = 0;  // of the socket: numbers of descriptors are reused
    std::string address;  // of a peer over TCP, in gRPC's form
    uint64_t number = 0;  // in the order of arrival
    bool is_ended = false;
  };

  void Serve();
  // Returns false if further connections must wait.
  bool Accept(const ListeningSocket& listener);
  // Returns the server for the connection.
  absl::StatusOr<Server*> Admit(int connection, bool names_caller);
  absl::StatusOr<Server*> ServerOf(UserQuota::User user) const;
  absl::Status TakePlace(int connection, UserQuota::User user);
  // Tries to free a place for the user.
  void MakeRoomFor(UserQuota::User user);
  // Closes the oldest connection without a call; returns false if there is none.
  bool EndOldest();
  // Closes the connection's socket. Returns false if there is no free descriptor for it.
  bool ShutDown(int connection, uint64_t cookie);
  void Forget(int connection);
  void ForgetClosed();
  // Closes connections that `peers` rejects, once a second.
  void EndThoseOver();
  void RestorePaths();

  const Options options_;
  SystemCalls kernel_;
  SystemCalls* const system_;
  // Used by the thread only: places and connections of users other than the daemon's own.
  UserQuota places_;
  std::map<int, Held> held_;           // by descriptor
  std::map<uint64_t, int> newcomers_;  // by number: connections of `peers` without a call at the last check
  uint64_t last_number_ = 0;
  SteadyTime last_look_;   // for connections to close
  SteadyTime next_check_;  // of Unix sockets' paths
  LogThrottle refusals_;
  LogThrottle departures_;  // of newcomers
  ThrottledLog log_;
  std::vector<ListeningSocket> sockets_;                        // used by the thread only, once it runs
  std::map<UserQuota::User, std::unique_ptr<Server>> servers_;  // constant after Start
  wire::FileDescriptor stop_;                                   // an eventfd
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_CONNECTION_ACCEPTOR_H_
