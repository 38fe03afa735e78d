#include "server/data_plane/nccl_connector.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/nccl.h"
#include "server/base/thread.h"
#include "server/data_plane/abort_state.h"
#include "server/data_plane/nccl_mesh.h"

namespace paramshard::server {
namespace {

using NcclMeshes = std::vector<std::unique_ptr<NcclMesh>>;

// Shortest timeout for connecting, even if a step waits less for a rank: NCCL takes seconds to inspect the machine and
// to connect.
constexpr absl::Duration kShortestTimeout = absl::Seconds(30);

absl::StatusOr<const gpu::Nccl*> LoadNcclOrSayHow(const std::string& path) {
  absl::StatusOr<const gpu::Nccl*> nccl = gpu::Nccl::Load(path);
  if (nccl.ok()) return nccl;
  return absl::Status(nccl.status().code(), absl::StrCat(nccl.status().message(),
                                                         "; install NCCL (libnccl2), or say with --nccl-library or "
                                                         "PARAMSHARD_NCCL_LIBRARY where it is (PyTorch's copy serves: "
                                                         "nvidia/nccl/lib/libnccl.so.2 in its site-packages)"));
}

// Returns the key of a communicator's id, which the first member makes. It has the mesh's number in that member's
// daemon.
std::string IdKey(const MeshPlan& plan) { return absl::StrCat("nccl/", plan.members[0].mesh); }

absl::Status PutIds(const gpu::Nccl& nccl, const MeshConnection& connection) {
  for (const MeshPlan& plan : connection.plans) {
    if (plan.self != 0) continue;
    ASSIGN_OR_RETURN(const std::string id, gpu::NcclCommunicator::MakeId(nccl));
    RETURN_IF_ERROR(connection.rendezvous->Put(IdKey(plan), absl::BytesToHexString(id)));
  }
  return absl::OkStatus();
}

// Returns the ids by plan.
absl::StatusOr<std::vector<std::string>> GetIds(const MeshConnection& connection, SteadyTime deadline) {
  std::vector<std::string> ids;
  for (const MeshPlan& plan : connection.plans) {
    const absl::StatusOr<std::string> id = AwaitValue(connection, plan.members[0].member.node, IdKey(plan), deadline);
    if (absl::IsDeadlineExceeded(id.status())) {
      return absl::UnavailableError(
          absl::StrCat(MemberName(plan.members[0].member), ": timed out waiting for its NCCL id"));
    }
    RETURN_IF_ERROR(id.status());
    ids.push_back(absl::HexStringToBytes(*id));
  }
  return ids;
}

// Returns the indices of meshes to connect at the same time: the n-th of every GPU. NCCL's allocations for one
// communicator may wait for kernels of another on the same GPU, which may wait for a GPU that is behind: so the
// communicators of a GPU are connected one after another, in the same order everywhere.
std::vector<std::vector<int>> Rounds(const std::vector<int>& devices) {
  std::vector<std::vector<int>> rounds;
  std::map<int, size_t> meshes_of_device;
  for (size_t mesh = 0; mesh < devices.size(); ++mesh) {
    const size_t round = meshes_of_device[devices[mesh]]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(static_cast<int>(mesh));
  }
  return rounds;
}

// Connects each mesh on a thread of its own, since they wait for each other too. The first error ends all.
absl::Status ConnectRound(const std::vector<int>& round, const NcclMeshes& meshes, const std::vector<std::string>& ids,
                          SteadyTime deadline) {
  AbortState failed;
  const auto settle = [&](const absl::Status& status) {
    if (status.ok() || !failed.Set(status)) return;
    for (const int other : round) meshes[other]->Abort(status);
  };
  std::vector<std::thread> threads;
  for (const int mesh : round) {
    absl::StatusOr<std::thread> thread =
        StartThread("a mesh of GPUs", [&, mesh] { settle(meshes[mesh]->Connect(ids[mesh], deadline)); });
    settle(thread.status());
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  return failed.status();
}

}  // namespace

absl::StatusOr<std::string> LoadNccl(const std::string& library, const std::string& key) {
  ASSIGN_OR_RETURN(const gpu::Nccl* const nccl, LoadNcclOrSayHow(library));
  if (!key.empty()) RETURN_IF_ERROR(nccl->SetKey(key));
  return nccl->version;
}

absl::StatusOr<std::vector<std::unique_ptr<Mesh>>> ConnectNcclMeshes(const NcclConnection& connection) {
  ASSIGN_OR_RETURN(const gpu::Nccl* const nccl, LoadNcclOrSayHow(connection.library));
  ASSIGN_OR_RETURN(auto hosts, ConnectMeshes(connection.hosts));
  NcclMeshes meshes;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ASSIGN_OR_RETURN(meshes.emplace_back(), NcclMesh::Create(*nccl, connection.devices[i], std::move(hosts[i])));
  }
  const ConnectAbort::Hook hook(connection.hosts.abort, [&](const absl::Status& status) {
    for (const auto& mesh : meshes) mesh->Abort(status);
  });
  const SteadyTime deadline = SteadyDeadline(std::max(connection.hosts.timeout, kShortestTimeout));
  RETURN_IF_ERROR(PutIds(*nccl, connection.hosts));
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, GetIds(connection.hosts, deadline));
  for (const std::vector<int>& round : Rounds(connection.devices)) {
    RETURN_IF_ERROR(ConnectRound(round, meshes, ids, deadline));
  }
  return std::vector<std::unique_ptr<Mesh>>(std::make_move_iterator(meshes.begin()),
                                            std::make_move_iterator(meshes.end()));
}

}  // namespace paramshard::server
