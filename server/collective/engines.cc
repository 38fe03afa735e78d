#include "server/collective/engines.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/collective/cuda_engines.h"
#include "server/collective/gloo_collectives.h"
#include "server/collective/local_group.h"
#include "server/collective/memcpy_collectives.h"
#include "server/collective/mesh_connector.h"
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

absl::StatusOr<std::vector<std::unique_ptr<TcpMesh>>> Connect(const EngineSpec& spec, std::vector<MeshPlan> plans) {
  PARAMSHARD_CHECK(spec.rendezvous != nullptr);
  auto meshes = ConnectMeshes({spec.node, std::move(plans), spec.rendezvous, spec.timeout, spec.listen_address});
  if (meshes.ok()) return meshes;
  return absl::Status(meshes.status().code(),
                      absl::StrCat("connect engines of ", spec.model->name, ": ", meshes.status().message()));
}

LocalGroup GroupOf(const EngineSpec& spec) { return {spec.model, spec.layout, spec.memory}; }

int LocalRanks(const EngineSpec& spec) { return static_cast<int>(spec.memory.size()); }

Engines MakeMemcpyEngines(const EngineSpec& spec) {
  Engines engines(LocalRanks(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    engines[rank] = std::make_unique<MemcpyCollectives>(GroupOf(spec), rank);
  }
  return engines;
}

absl::StatusOr<Engines> ConnectReplicatedEngines(const EngineSpec& spec) {
  std::vector<MeshPlan> plans(LocalRanks(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) plans[rank] = PlanOverReplicas(spec, rank);
  ASSIGN_OR_RETURN(auto meshes, Connect(spec, std::move(plans)));
  Engines engines;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    engines.push_back(
        std::make_unique<ReplicatedCollectives>(GroupOf(spec), rank, std::move(meshes[rank]), spec.timeout));
  }
  return engines;
}

absl::StatusOr<Engines> ConnectGlooEngines(const EngineSpec& spec) {
  std::vector<MeshPlan> plans;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    for (int queue = 0; queue < kMeshesPerRank; ++queue) plans.push_back(PlanOverWorld(spec, rank, queue));
  }
  ASSIGN_OR_RETURN(auto meshes, Connect(spec, std::move(plans)));
  Engines engines;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    const GlooCollectives::Options options{spec.model, spec.layout, spec.memory[rank], spec.timeout};
    const int first = rank * kMeshesPerRank;
    engines.push_back(
        std::make_unique<GlooCollectives>(options, std::move(meshes[first]), std::move(meshes[first + 1])));
  }
  return engines;
}

}  // namespace

absl::StatusOr<Engines> ConnectEngines(const EngineSpec& spec) {
  PARAMSHARD_CHECK(LocalRanks(spec) == spec.device_counts[spec.node]);
  ASSIGN_OR_RETURN(const Topology topology, ChooseTopology(spec));
  if (spec.memory.front().device->id().kind == DeviceKind::kCuda) {
    if (topology == Topology::kInsideDaemon) return MakeCopyEngines(GroupOf(spec));
    return absl::UnimplementedError(absl::StrCat("connect engines of ", spec.model->name,
                                                 ": GPUs of several daemons are not served yet; start one daemon with "
                                                 "all GPUs of the node"));
  }
  switch (topology) {
    case Topology::kInsideDaemon:
      return MakeMemcpyEngines(spec);
    case Topology::kReplicated:
      return ConnectReplicatedEngines(spec);
    case Topology::kAcrossDaemons:
      break;
  }
  return ConnectGlooEngines(spec);
}

}  // namespace paramshard::server
