// SIGKILL to a process that a pidfd refers to, so that no other process of its number is hit.
#ifndef PARAMSHARD_SERVER_BASE_KILL_PROCESS_H_
#define PARAMSHARD_SERVER_BASE_KILL_PROCESS_H_

#include "absl/status/status.h"

namespace paramshard::server {

// OK also if the process has ended. PERMISSION_DENIED.
absl::Status KillProcess(int pidfd);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_KILL_PROCESS_H_
