#include "server/data_plane/cuda_engines.h"

#include "kernels/base/status_macros.h"
#include "server/data_plane/copy_engine_collectives.h"

namespace paramshard::server {

absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeCopyEngines(const LocalGroup& group,
                                                                          bool sums_at_commit) {
  std::vector<std::unique_ptr<Collectives>> engines;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    ASSIGN_OR_RETURN(engines.emplace_back(), CopyEngineCollectives::Create(group, rank, sums_at_commit));
  }
  return engines;
}

}  // namespace paramshard::server
