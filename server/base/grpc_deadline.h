// Deadlines of gRPC calls, alarms and servers.
#ifndef PARAMSHARD_SERVER_BASE_GRPC_DEADLINE_H_
#define PARAMSHARD_SERVER_BASE_GRPC_DEADLINE_H_

#include <grpc/support/time.h>

#include "absl/time/time.h"

namespace paramshard::server {

// Returns the time `wait` from now, by the monotonic clock.
inline gpr_timespec GrpcDeadline(absl::Duration wait) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(absl::ToInt64Nanoseconds(wait), GPR_TIMESPAN));
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_GRPC_DEADLINE_H_
