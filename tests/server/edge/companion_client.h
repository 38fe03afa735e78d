// The trainer's end of a companion connection, for tests; sends valid and invalid packets.
#ifndef PARAMSHARD_TESTS_SERVER_EDGE_COMPANION_CLIENT_H_
#define PARAMSHARD_TESTS_SERVER_EDGE_COMPANION_CLIENT_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/shared_memory/companion_packet.h"

namespace paramshard::server {

class CompanionClient {
 public:
  // UNAVAILABLE without a listener, or if the kernel refuses.
  static absl::StatusOr<CompanionClient> Connect(const std::string& path);

  // Sends a hello with the pidfd of `process` (0: the calling one), and returns the token, or the refusal.
  absl::StatusOr<std::string> SayHello(pid_t process = 0);
  // Sends any bytes and descriptors.
  absl::Status Send(absl::Span<const uint8_t> bytes, absl::Span<const int> fds) const;
  absl::StatusOr<wire::CompanionPacket> Receive(absl::Duration timeout = absl::Seconds(30)) const;
  // Returns the refusal that the daemon sends before it closes; OK when its next packet is no refusal.
  absl::Status ReceiveRefusal() const;
  // Waits until the daemon has closed the connection.
  bool AwaitClosed() const;

  int socket() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

 private:
  explicit CompanionClient(wire::FileDescriptor socket) : socket_(std::move(socket)) {}

  wire::FileDescriptor socket_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_EDGE_COMPANION_CLIENT_H_
