// In place of cuda_engines.cc where the build has no CUDA.
#include "server/collective/cuda_engines.h"

namespace paramshard::server {

absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeCopyEngines(const LocalGroup&) {
  return absl::UnimplementedError("copy engines: this build was made without CUDA");
}

}  // namespace paramshard::server
