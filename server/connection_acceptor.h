// Takes connections for gRPC servers.
#ifndef PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_
#define PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_

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
#include "proto/wire/handoff.h"
#include "server/base/user_places.h"
#include "server/handoff/listening_path.h"
#include "server/handoff/system_calls.h"
#include "server/log/log_throttle.h"
#include "server/transport/peer_connections.h"

namespace paramshard::server {

// A socket that listens: on TCP, or at a path.
struct ListeningSocket {
  wire::FileDescriptor tcp;
  int port = 0;                         // of TCP
  std::unique_ptr<ListeningPath> path;  // a Unix socket, of whose peers the kernel tells the user

  int fd() const { return path == nullptr ? tcp.get() : path->fd(); }
};

// On `HOST:PORT`, on every address of the host; port 0 takes a free one for all. At least one; UNAVAILABLE.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnAddress(const std::string& address);
// FAILED_PRECONDITION where no socket could be bound on the host of `HOST:PORT`, whoever has the port. A name that is not
// known may be known later.
absl::Status CheckIsLocal(const std::string& address);

// gRPC's own listener stops for good when there is no descriptor for a connection, and asks nobody who connects. This
// one waits until there is a descriptor, and closes connections
//
// - of users who have no server, as far as the kernel names them;
// - of others than the daemon's own user that go beyond their share;
// - that would take the last quarter of all descriptors, which the daemon needs for memory and for those whom it serves
//   already.
//
// Each user has a server, and so memory of gRPC's, of its own: at its end gRPC cancels calls, whoever has made them.
//
// It ends connections over TCP that `peers` says are over. Where their share is used up the oldest of those that have
// had no call gives way to the newest one: whoever has no certificate can connect, and keeps nobody out.
//
// One thread, which also looks whether its Unix sockets are still at their paths.
class ConnectionAcceptor {
 public:
  struct Options {
    // Of which other users, and those who come over TCP, have their shares (UserPlaces).
    int max_connections = 8192;
    // Outlives the acceptor. Null: the kernel's.
    SystemCalls* system = nullptr;
    // Of connections over TCP; null: none of them ends before its ends close it.
    std::shared_ptr<PeerConnections> peers = nullptr;
  };

  ConnectionAcceptor(std::vector<ListeningSocket> sockets, Options options);
  // Ends before the servers do.
  ~ConnectionAcceptor();

  // `builder` builds the server of the user's connections next; that of nobody takes those whose user is not known.
  void AddServer(UserPlaces::User user, grpc::ServerBuilder& builder,
                 const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Once the servers are built. RESOURCE_EXHAUSTED.
  absl::Status Start();

 private:
  using Server = grpc::experimental::ExternalConnectionAcceptor;
  // A connection that gRPC has now, and may have closed.
  struct Held {
    UserPlaces::User user;
    uint64_t cookie = 0;  // of the socket: numbers of descriptors are given out again
    std::string address;  // of the other end over TCP, as gRPC writes it
    uint64_t number = 0;  // in the order of arrival
    bool is_ended = false;
  };

  void Serve();
  // False when connections have to wait.
  bool Accept(const ListeningSocket& listener);
  // The server that the connection may go to.
  absl::StatusOr<Server*> Admit(int connection, bool names_caller);
  absl::StatusOr<Server*> ServerOf(UserPlaces::User user) const;
  absl::Status TakePlace(int connection, UserPlaces::User user);
  // So that the user may find a place.
  void MakeRoomFor(UserPlaces::User user);
  // Of newcomers; false where there is none.
  bool EndOldest();
  // Closes the connection's socket. False when there is no descriptor to do it with.
  bool ShutDown(int connection, uint64_t cookie);
  void Forget(int connection);
  void ForgetClosed();
  // Looks once a second.
  void EndThoseOver();
  void RestorePaths();

  const Options options_;
  SystemCalls kernel_;
  SystemCalls* const system_;
  // Of the thread: places and connections of others than the daemon's own user.
  UserPlaces places_;
  std::map<int, Held> held_;           // by descriptor
  std::map<uint64_t, int> newcomers_;  // by number: those of `peers` that have had no call when last looked at
  uint64_t last_number_ = 0;
  SteadyTime last_look_;   // for connections that are over
  SteadyTime next_check_;  // of Unix sockets' paths
  LogThrottle refusals_;
  LogThrottle departures_;  // of newcomers
  ThrottledLog log_;
  std::vector<ListeningSocket> sockets_;                         // of the thread once it runs
  std::map<UserPlaces::User, std::unique_ptr<Server>> servers_;  // constant after Start
  wire::FileDescriptor stop_;                                    // an eventfd
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_
