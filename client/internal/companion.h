// A connection to the daemon's companion socket, which keeps a token alive and brings a session's
// memory.
#ifndef PARAMSHARD_CLIENT_INTERNAL_COMPANION_H_
#define PARAMSHARD_CLIENT_INTERNAL_COMPANION_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shared_memory/companion_packet.h"

namespace paramshard::internal {

// Descriptors and sizes of the three memories of a session.
struct SessionMemory {
  wire::CompanionMemory sizes;
  wire::FileDescriptor planes;
  wire::FileDescriptor slots;
  wire::FileDescriptor words;
};

// Descriptors of a reader's memory, and their sizes.
struct ReaderMemory {
  struct Part {
    wire::FileDescriptor fd;
    int64_t bytes = 0;
  };
  Part publication;
  Part lease;
  std::vector<Part> planes;  // by rank of the shard group
};

// Owns the socket and the daemon's pidfd. The token dies with the socket. Movable.
class Companion {
 public:
  // Connects, sends this process's pidfd, and receives the token. UNAVAILABLE when no daemon listens at
  // `path`; the daemon's own refusal, such as PERMISSION_DENIED or RESOURCE_EXHAUSTED;
  // DEADLINE_EXCEEDED when it accepts no connection, or sends nothing: `timeout` limits each of the two.
  static absl::StatusOr<Companion> Connect(const std::string& path, absl::Duration timeout);

  Companion(wire::FileDescriptor socket, wire::FileDescriptor daemon_pidfd, std::string token, pid_t daemon_pid);
  Companion(Companion&&) noexcept = default;
  Companion& operator=(Companion&&) = delete;
  // Ends the connection, though a forked child may still have its descriptor.
  ~Companion();

  // The memory of the session that attached with this connection's token.
  absl::StatusOr<SessionMemory> ReceiveMemory(absl::Duration timeout);

  // The memory of the reader that this connection's token has opened. INTERNAL for ranks out of order.
  absl::StatusOr<ReaderMemory> ReceiveReader(absl::Duration timeout);

  // Returns true if the daemon has died or has closed the connection, or does so within `wait`.
  bool IsLost(absl::Duration wait = absl::ZeroDuration()) const;

  const std::string& token() const { return token_; }
  int socket() const { return socket_.get(); }
  int daemon_pidfd() const { return daemon_pidfd_.get(); }
  pid_t daemon_pid() const { return daemon_pid_; }

 private:
  wire::FileDescriptor socket_;
  wire::FileDescriptor daemon_pidfd_;
  std::string token_;
  pid_t daemon_pid_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_COMPANION_H_
