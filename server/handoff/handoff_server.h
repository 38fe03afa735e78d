// The companion Unix socket: checks who connects, mints tokens, passes file descriptors, and notices who is gone.
#ifndef PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_
#define PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_

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
#include "proto/wire/handoff.h"
#include "server/base/steady_time.h"
#include "server/base/user_places.h"
#include "server/handoff/listening_path.h"
#include "server/handoff/peer_process.h"
#include "server/handoff/system_calls.h"
#include "server/handoff/watch_list.h"

namespace paramshard::server {

// Thread-safe. One thread serves all connections. A peer is gone when its socket
// closes, when its process dies (a forked child may keep the socket open), or when it breaks the protocol.
//
// A machine that is short of descriptors or memory costs newcomers their connection, never the thread: they are refused
// with RESOURCE_EXHAUSTED where that can be said, and wait in the socket's queue where it cannot.
class HandoffServer {
 public:
  struct Options {
    std::string path;
    std::vector<uid_t> allowed_users;  // the daemon's own user included
    // See ListeningPath::Options.
    std::function<absl::Status()> restore_directory = nullptr;
    absl::Duration hello_timeout = absl::Seconds(5);
    // Each takes two descriptors. Users share them (UserPlaces). When there is none left for a newcomer, one that has
    // said no hello makes room, the oldest of those whose place the newcomer may have.
    int max_connections = 8192;
    // Called from the server's thread once a peer with a token is gone.
    std::function<void(const std::string& token)> on_gone;
    // Outlives the server. Null: the kernel's.
    SystemCalls* system = nullptr;
  };

  // Binds and listens. Errors of ListeningPath::Create.
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
    uint64_t number = 0;  // counts all connections, from 1
    wire::FileDescriptor socket;
    wire::FileDescriptor pidfd;  // empty before the hello
    PeerCredentials peer;
    std::string token;  // empty before the hello
    SteadyTime hello_deadline;
  };

  HandoffServer(Options options, WatchList watched);

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
  // An error ends the connection.
  absl::Status Receive(Connection& connection);
  absl::Status Welcome(Connection& connection, wire::HandoffPacket packet);
  // Ends a connection; `why`, unless it is OK, is what the peer is told.
  void Drop(uint64_t number, const absl::Status& why = absl::OkStatus());
  void DropLate();
  // Listens anew where the socket's file is gone.
  void CheckListener();
  void SetMuted(bool muted);
  Connection* Find(uint64_t number) const;

  const Connection* FindToken(absl::string_view token) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Constant after Start.
  const Options options_;
  SystemCalls* const system_;
  SystemCalls kernel_;
  wire::FileDescriptor stop_;  // an eventfd
  wire::FileDescriptor own_pidfd_;

  // These belong to the serving thread.
  std::unique_ptr<ListeningPath> listener_;
  SteadyTime next_check_;  // of the listener
  WatchList watched_;
  wire::FileDescriptor spare_;  // given up when there is no other descriptor, to take and refuse a connection
  uint64_t last_number_ = 0;
  std::map<uint64_t, uid_t> silent_;  // connections without a hello, in the order in which they came, and whose
  UserPlaces places_;                 // of connections
  std::optional<SteadyTime> muted_until_;

  mutable absl::Mutex mu_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);  // by number
  std::map<std::string, uint64_t, std::less<>> tokens_ ABSL_GUARDED_BY(mu_);          // to number
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_HANDOFF_HANDOFF_SERVER_H_
