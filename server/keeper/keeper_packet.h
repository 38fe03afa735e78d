// Packets with many descriptors on a SOCK_SEQPACKET socket, none of which is waited for.
#ifndef PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_
#define PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// Both ends of a new connection.
absl::StatusOr<std::pair<wire::FileDescriptor, wire::FileDescriptor>> MakeKeeperSockets();

struct KeeperPacket {
  std::string bytes;
  std::vector<wire::FileDescriptor> fds;  // close-on-exec
  // OK, or why not all of it is here. INVALID_ARGUMENT: it was larger than messages may be. RESOURCE_EXHAUSTED: this
  // process could not open all of its descriptors. What could not be taken is closed.
  absl::Status whole;
};

// Sends all or nothing. DEADLINE_EXCEEDED: the peer has not read what came before, and the socket says when to try
// again (POLLOUT). UNAVAILABLE: the peer is gone. RESOURCE_EXHAUSTED: the kernel passes on no more. INVALID_ARGUMENT:
// one of `fds` is none.
absl::Status SendKeeperPacket(int socket, absl::string_view bytes, absl::Span<const int> fds);

// Takes the next packet. DEADLINE_EXCEEDED: there is none yet. UNAVAILABLE: the peer is gone, or has sent an empty
// packet, which says the same.
absl::StatusOr<KeeperPacket> ReceiveKeeperPacket(int socket);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_PACKET_H_
