// Process at the other end of a companion connection.
#ifndef PARAMSHARD_SERVER_EDGE_PEER_PROCESS_H_
#define PARAMSHARD_SERVER_EDGE_PEER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::server {

// Credentials of a peer, from the kernel.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

absl::StatusOr<PeerCredentials> CredentialsOf(int socket);

// INVALID_ARGUMENT unless `pidfd` refers to process `pid`: a peer must not have another process watched or killed.
// RESOURCE_EXHAUSTED no free descriptor for the check.
absl::Status CheckPidfd(int pidfd, pid_t pid);

// FAILED_PRECONDITION if this process may send no signal through the pidfd. Sends none.
absl::Status CheckMaySignal(int pidfd);

// Returns a pidfd of the calling process.
absl::StatusOr<wire::FileDescriptor> OwnPidfd();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_PEER_PROCESS_H_
