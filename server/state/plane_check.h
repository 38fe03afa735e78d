// Check of planes against the masters that they were encoded from.
#ifndef PARAMSHARD_SERVER_STATE_PLANE_CHECK_H_
#define PARAMSHARD_SERVER_STATE_PLANE_CHECK_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/state/shard.h"

namespace paramshard::server {

// Encodes the extent again, on the host, with what it was encoded with, and compares with what is served.
absl::StatusOr<bool> PlanesMatchMaster(const Shard& shard, const ShardExtent& extent)
    ABSL_SHARED_LOCKS_REQUIRED(shard.mutex());

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PLANE_CHECK_H_
