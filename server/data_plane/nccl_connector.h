// Connection of the GPUs of all daemons.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_NCCL_CONNECTOR_H_
#define PARAMSHARD_SERVER_DATA_PLANE_NCCL_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data_plane/mesh.h"
#include "server/data_plane/mesh_connector.h"

namespace paramshard::server {

struct NcclConnection {
  MeshConnection hosts;      // the plans
  std::vector<int> devices;  // by plan: this daemon's GPU whose memory the mesh moves
  std::string library;       // path of NCCL; empty: found by the dynamic linker
};

// Loads NCCL for the life of the process, so that a missing or old library is found at the start. Returns its version,
// as "2.27.3". With a key, NCCL sends only over TCP, encrypted. `library`: see NcclConnection. FAILED_PRECONDITION the
// library is missing or too old (says what to do), or does not support keys; UNIMPLEMENTED a build without CUDA.
absl::StatusOr<std::string> LoadNccl(const std::string& library, const std::string& key = {});

// Like ConnectMeshes, with a mesh over NCCL on every mesh over TCP. FAILED_PRECONDITION besides: NCCL is missing or too
// old (says what to do), or refuses the GPUs. UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<std::vector<std::unique_ptr<Mesh>>> ConnectNcclMeshes(const NcclConnection& connection);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_NCCL_CONNECTOR_H_
