// Companion Unix socket: authenticates trainers, mints tokens, passes file descriptors, and notices dead processes.
#ifndef PARAMSHARD_SERVER_EDGE_COMPANION_SERVER_H_
#define PARAMSHARD_SERVER_EDGE_COMPANION_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "common/shared_memory/companion_packet.h"
#include "server/base/steady_time.h"
#include "server/base/user_quota.h"
#include "server/edge/listening_path.h"
#include "server/edge/peer_process.h"
#include "server/edge/system_calls.h"
#include "server/edge/watch_list.h"

namespace paramshard::server {

// Thread-safe. One thread serves all connections. A peer is gone when its socket closes, when its process dies (a
// forked child may keep the socket open), or when it breaks the protocol.
//
// If descriptors or memory run out, new connections are rejected with RESOURCE_EXHAUSTED, or wait in the socket's queue
// if they cannot even be rejected; the thread goes on.
class CompanionServer {
 public:
  struct Options {
    std::string path;
    std::vector<uid_t> allowed_users;  // the daemon's own user included
    // See ListeningPath::Options.
    std::function<absl::Status()> restore_directory = nullptr;
    absl::Duration hello_timeout = absl::Seconds(5);
    // Each connection takes two descriptors. Users share them (UserQuota). At the limit, a new connection replaces the
    // oldest one without a hello whose place its user may have.
    int max_connections = 8192;
    // Called by the server's thread once a peer with a token is gone.
    std::function<void(const std::string& token)> on_gone;
    // Must outlive the server. Null: the kernel's.
    SystemCalls* system = nullptr;
  };

  // Binds and listens. Errors of ListeningPath::Create.
  static absl::StatusOr<std::unique_ptr<CompanionServer>> Start(Options options);
  ~CompanionServer();

  struct Peer {
    pid_t pid = 0;
    uid_t uid = 0;
  };
  // UNAUTHENTICATED for a token that was not minted or whose connection has closed.
  absl::StatusOr<Peer> Authenticate(absl::string_view token) const;
  // Sends a message with descriptors. ABORTED the peer is gone; errors of SendCompanionPacket.
  template <typename Message>
  absl::Status Send(absl::string_view token, const Message& message, absl::Span<const int> fds) const {
    return SendBytes(token, wire::CompanionBytes(message), fds);
  }
  // Returns a pidfd of the peer's process. ABORTED the peer is gone; RESOURCE_EXHAUSTED.
  absl::StatusOr<wire::FileDescriptor> Process(absl::string_view token) const;
  // Kills the peer's process; it will be reported as gone.
  absl::Status Kill(absl::string_view token) const;

  int64_t connection_count() const;

 private:
  struct Connection {
    uint64_t number = 0;  // counts all connections, from 1
    wire::FileDescriptor socket;
    wire::FileDescriptor pidfd;  // empty before the hello
    PeerCredentials peer;
    std::string token;  // empty before the hello
    SteadyTime hello_deadline;
  };

  CompanionServer(Options options, WatchList watched);

  // The serving thread.
  void Serve();
  absl::Span<const epoll_event> Await(absl::Span<epoll_event> events);
  int WaitMilliseconds() const;
  void Handle(uint64_t tag);
  void Accept();
  bool RefuseForLackOfDescriptors();
  absl::Status Admit(wire::FileDescriptor& socket);
  absl::Status CheckUser(const PeerCredentials& peer) const;
  absl::Status TakePlace(uid_t user);
  // An error closes the connection.
  absl::Status Receive(Connection& connection);
  absl::Status Welcome(Connection& connection, wire::CompanionPacket packet);
  // Closes a connection; sends `why` to the peer unless it is OK.
  void Drop(uint64_t number, const absl::Status& why = absl::OkStatus());
  void DropLate();
  // Listens again if the socket's file is gone.
  void CheckListener();
  void SetMuted(bool muted);
  Connection* Find(uint64_t number) const;

  absl::Status SendBytes(absl::string_view token, absl::Span<const uint8_t> bytes, absl::Span<const int> fds) const;
  const Connection* FindToken(absl::string_view token) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Constant after Start.
  const Options options_;
  SystemCalls* const system_;
  SystemCalls kernel_;
  wire::FileDescriptor stop_;  // an eventfd
  wire::FileDescriptor own_pidfd_;

  // Used by the serving thread only.
  std::unique_ptr<ListeningPath> listener_;
  SteadyTime next_check_;  // of the listener
  WatchList watched_;
  wire::FileDescriptor spare_;  // closed at the descriptor limit, to accept and reject a connection
  uint64_t last_number_ = 0;
  std::map<uint64_t, uid_t> silent_;  // connections without a hello, oldest first, and their users
  UserQuota places_;                  // of connections
  std::optional<SteadyTime> muted_until_;

  mutable absl::Mutex mu_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);  // by number
  std::map<std::string, uint64_t, std::less<>> tokens_ ABSL_GUARDED_BY(mu_);          // to number
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_COMPANION_SERVER_H_
