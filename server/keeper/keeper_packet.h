// Packets with many descriptors on a SOCK_SEQPACKET socket, sent and received without blocking.
#ifndef PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_
#define PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Returns both ends of a new connection.
absl::StatusOr<std::pair<wire::FileDescriptor, wire::FileDescriptor>> MakeKeeperSockets();

struct KeeperPacket {
  std::string bytes;
  std::vector<wire::FileDescriptor> fds;  // close-on-exec
  // OK if the packet is complete. INVALID_ARGUMENT: it was larger than the largest message. RESOURCE_EXHAUSTED: this
  // process could not open all of its descriptors; the others are closed.
  absl::Status whole;
};

// Sends all or nothing. DEADLINE_EXCEEDED: the peer has not read earlier packets; try again on POLLOUT. UNAVAILABLE:
// the peer is gone. RESOURCE_EXHAUSTED: the kernel passes no more descriptors. INVALID_ARGUMENT: one of `fds` is
// invalid.
absl::Status SendKeeperPacket(int socket, absl::string_view bytes, absl::Span<const int> fds);

// Receives the next packet. DEADLINE_EXCEEDED: there is none yet. UNAVAILABLE: the peer is gone, or has sent an empty
// packet, which means the same.
absl::StatusOr<KeeperPacket> ReceiveKeeperPacket(int socket);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_
