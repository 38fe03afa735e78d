#include "server/collective/engines.h"

#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/collective/cuda_engines.h"
#include "server/collective/local_group.h"
#include "server/collective/memcpy_collectives.h"
#include "server/collective/mesh_collectives.h"
#include "server/collective/mesh_connector.h"
#include "server/collective/nccl_connector.h"
#include "server/collective/replicated_collectives.h"

namespace paramshard::server {
namespace {

using Engines = std::vector<std::unique_ptr<Collectives>>;

// Where the shard groups of a model lie.
enum class Topology { kInsideDaemon, kReplicated, kAcrossDaemons };

absl::StatusOr<Topology> ChooseTopology(const EngineSpec& spec) {
  const int world = std::accumulate(spec.device_counts.begin(), spec.device_counts.end(), 0);
  const int ranks = spec.layout->ranks();
  const bool alone = spec.device_counts.size() == 1;
  if (ranks == world) return alone ? Topology::kInsideDaemon : Topology::kAcrossDaemons;
  for (size_t node = 0; node < spec.device_counts.size(); ++node) {
    if (spec.device_counts[node] != ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("connect engines of ", spec.model->name, ": a shard size of ", world,
                       " (the world), or of every daemon's devices, expected; got ", ranks, " with ",
                       spec.device_counts[node], " devices on node ", node));
    }
  }
  return Topology::kReplicated;
}

// Over all ranks of the world. Every daemon has two meshes for each of its ranks: for gathers and
// for reductions.
constexpr int kMeshesPerRank = 2;

MeshPlan PlanOverWorld(const EngineSpec& spec, int local_rank, int queue) {
  MeshPlan plan;
  for (int node = 0; node < static_cast<int>(spec.device_counts.size()); ++node) {
    for (int device = 0; device < spec.device_counts[node]; ++device) {
      const int rank = static_cast<int>(plan.members.size());
      if (node == spec.node && device == local_rank) plan.self = rank;
      plan.members.push_back({{node, rank}, device * kMeshesPerRank + queue});
    }
  }
  return plan;
}

// Over the ranks of one index in every daemon. One mesh for each rank, for reductions.
MeshPlan PlanOverReplicas(const EngineSpec& spec, int local_rank) {
  MeshPlan plan;
  plan.self = spec.node;
  for (int node = 0; node < static_cast<int>(spec.device_counts.size()); ++node) {
    plan.members.push_back({{node, node * spec.device_counts[node] + local_rank}, local_rank});
  }
  return plan;
}

bool OnGpus(const EngineSpec& spec) { return spec.memory.front().device->id().kind == DeviceKind::kCuda; }

int LocalRanks(const EngineSpec& spec) { return static_cast<int>(spec.memory.size()); }

using Meshes = std::vector<std::unique_ptr<Mesh>>;

// `connection` has the same number of plans for every rank, one rank after the other.
absl::StatusOr<Meshes> ConnectOverNccl(const EngineSpec& spec, const MeshConnection& connection) {
  std::vector<int> devices;
  const size_t plans_per_rank = connection.plans.size() / spec.memory.size();
  for (const RankMemory& memory : spec.memory) devices.insert(devices.end(), plans_per_rank, memory.device->id().index);
  return ConnectNcclMeshes({connection, std::move(devices), spec.nccl_library});
}

absl::StatusOr<Meshes> ConnectOverTcp(const MeshConnection& connection) {
  ASSIGN_OR_RETURN(auto meshes, ConnectMeshes(connection));
  return Meshes(std::make_move_iterator(meshes.begin()), std::make_move_iterator(meshes.end()));
}

absl::StatusOr<Meshes> Connect(const EngineSpec& spec, std::vector<MeshPlan> plans) {
  PARAMSHARD_CHECK(spec.rendezvous != nullptr);
  const MeshConnection connection{spec.node, std::move(plans), spec.rendezvous, spec.timeout, spec.listen_address};
  auto meshes = OnGpus(spec) ? ConnectOverNccl(spec, connection) : ConnectOverTcp(connection);
  if (meshes.ok()) return meshes;
  return absl::Status(meshes.status().code(),
                      absl::StrCat("connect engines of ", spec.model->name, ": ", meshes.status().message()));
}

LocalGroup GroupOf(const EngineSpec& spec) { return {spec.model, spec.layout, spec.memory}; }

absl::StatusOr<Engines> MakeLocalEngines(const EngineSpec& spec) {
  if (OnGpus(spec)) return MakeCopyEngines(GroupOf(spec));
  Engines engines(LocalRanks(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    engines[rank] = std::make_unique<MemcpyCollectives>(GroupOf(spec), rank);
  }
  return engines;
}

absl::StatusOr<Engines> ConnectReplicatedEngines(const EngineSpec& spec) {
  std::vector<MeshPlan> plans(LocalRanks(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) plans[rank] = PlanOverReplicas(spec, rank);
  ASSIGN_OR_RETURN(Meshes meshes, Connect(spec, std::move(plans)));
  ASSIGN_OR_RETURN(Engines engines, MakeLocalEngines(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    const ReplicatedCollectives::Options options{spec.model, spec.layout, rank, spec.memory[rank].device, spec.timeout};
    ASSIGN_OR_RETURN(engines[rank],
                     ReplicatedCollectives::Create(options, std::move(engines[rank]), std::move(meshes[rank])));
  }
  return engines;
}

absl::StatusOr<Engines> ConnectEnginesAcrossDaemons(const EngineSpec& spec) {
  std::vector<MeshPlan> plans;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    for (int queue = 0; queue < kMeshesPerRank; ++queue) plans.push_back(PlanOverWorld(spec, rank, queue));
  }
  ASSIGN_OR_RETURN(Meshes meshes, Connect(spec, std::move(plans)));
  Engines engines;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    const MeshCollectives::Options options{spec.model, spec.layout, spec.memory[rank], spec.timeout};
    const int first = rank * kMeshesPerRank;
    ASSIGN_OR_RETURN(engines.emplace_back(),
                     MeshCollectives::Create(options, std::move(meshes[first]), std::move(meshes[first + 1])));
  }
  return engines;
}

}  // namespace

absl::StatusOr<Engines> ConnectEngines(const EngineSpec& spec) {
  PARAMSHARD_CHECK(LocalRanks(spec) == spec.device_counts[spec.node]);
  ASSIGN_OR_RETURN(const Topology topology, ChooseTopology(spec));
  switch (topology) {
    case Topology::kInsideDaemon:
      return MakeLocalEngines(spec);
    case Topology::kReplicated:
      return ConnectReplicatedEngines(spec);
    case Topology::kAcrossDaemons:
      break;
  }
  return ConnectEnginesAcrossDaemons(spec);
}

}  // namespace paramshard::server
