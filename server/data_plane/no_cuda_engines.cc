// Replaces cuda_engines.cc and nccl_connector.cc in a build without CUDA.
#include "server/data_plane/cuda_engines.h"
#include "server/data_plane/nccl_connector.h"

namespace paramshard::server {

absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeCopyEngines(const LocalGroup&, bool) {
  return absl::UnimplementedError("copy engines: this build was made without CUDA");
}

absl::StatusOr<std::string> LoadNccl(const std::string&, const std::string&) {
  return absl::UnimplementedError("NCCL: this build was made without CUDA");
}

absl::StatusOr<std::vector<std::unique_ptr<Mesh>>> ConnectNcclMeshes(const NcclConnection&) {
  return absl::UnimplementedError("NCCL: this build was made without CUDA");
}

}  // namespace paramshard::server
