// Engines of `cuda` devices. Internal to the folder: engines.h is the interface.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_CUDA_ENGINES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_CUDA_ENGINES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/local_group.h"

namespace paramshard::server {

// Makes one for each rank of a shard group that lies in this daemon. UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeCopyEngines(const LocalGroup& group, bool sums_at_commit);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_CUDA_ENGINES_H_
