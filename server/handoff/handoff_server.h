// The companion Unix socket: checks who connects, mints tokens, passes file descriptors, and notices who is gone.
#ifndef PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_
#define PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/handoff.h"
#include "server/handoff/peer_process.h"

namespace paramshard::server {

// Thread-safe. One thread serves all connections; it sleeps while nothing happens. A peer is gone when its socket
// closes, when its process dies (a forked child may keep the socket open), or when it breaks the protocol.
class HandoffServer {
 public:
  struct Options {
    std::string path;
    std::vector<uid_t> allowed_users;  // the daemon's own user included
    absl::Duration hello_timeout = absl::Seconds(5);
    int max_connections = 8192;
    // Called from the server's thread once a peer with a token is gone.
    std::function<void(const std::string& token)> on_gone;
  };

  // Binds and listens. ALREADY_EXISTS when the path is in use by a live server.
  static absl::StatusOr<std::unique_ptr<HandoffServer>> Start(Options options);
  ~HandoffServer();

  struct Peer {
    pid_t pid = 0;
    uid_t uid = 0;
  };
  // UNAUTHENTICATED for a token that was not minted or whose connection has closed.
  absl::StatusOr<Peer> Authenticate(absl::string_view token) const;
  absl::Status SendMemory(absl::string_view token, const wire::HandoffMemory& message, absl::Span<const int> fds) const;
  // Kills the peer's process; it will be reported as gone.
  absl::Status Kill(absl::string_view token) const;

  int64_t connection_count() const;

 private:
  struct Connection {
    wire::FileDescriptor socket;
    wire::FileDescriptor pidfd;  // empty before the hello
    PeerCredentials peer;
    std::string token;  // empty before the hello
    absl::Time hello_deadline;
  };

  explicit HandoffServer(Options options);
  absl::Status Listen();
  void Serve();
  void Accept();
  // False when the connection is over.
  bool Receive(int socket);
  absl::Status Welcome(Connection& connection, wire::HandoffPacket packet);
  absl::Status CheckUser(const PeerCredentials& peer) const;
  void Drop(int socket);
  void DropLate();
  const Connection* FindToken(absl::string_view token) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Options options_;
  wire::FileDescriptor listener_;
  wire::FileDescriptor stop_;  // an eventfd
  wire::FileDescriptor own_pidfd_;

  mutable absl::Mutex mu_;
  std::map<int, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);  // by socket
  std::map<std::string, int, std::less<>> tokens_ ABSL_GUARDED_BY(mu_);          // to socket
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_
