// Brings the GPUs of all daemons together.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_NCCL_CONNECTOR_H_
#define PARAMSHARD_SERVER_COLLECTIVE_NCCL_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/collective/mesh.h"
#include "server/collective/mesh_connector.h"

namespace paramshard::server {

struct NcclConnection {
  MeshConnection hosts;      // the plans
  std::vector<int> devices;  // of this daemon, by plan: the index of the GPU whose memory the mesh moves
  std::string library;       // path of NCCL; empty: where the dynamic linker finds it
};

// Loads NCCL, for good: what is missing or too old is found at the start. Returns its version, as "2.27.3".
// FAILED_PRECONDITION says what was looked for, and what to do; UNIMPLEMENTED in a build without CUDA. `library` as in
// NcclConnection. With a key NCCL encrypts what it sends over TCP, and sends nothing another way; FAILED_PRECONDITION it
// knows no keys.
absl::StatusOr<std::string> LoadNccl(const std::string& library, const std::string& key = {});

// Like ConnectMeshes, with a mesh over NCCL on every mesh over TCP. FAILED_PRECONDITION besides: NCCL is missing or too
// old (says what to do), or refuses the GPUs. UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<std::vector<std::unique_ptr<Mesh>>> ConnectNcclMeshes(const NcclConnection& connection);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_NCCL_CONNECTOR_H_
