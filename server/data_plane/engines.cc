#include "server/data_plane/engines.h"

#include <iterator>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/counted_mesh.h"
#include "server/data_plane/cuda_engines.h"
#include "server/data_plane/local_group.h"
#include "server/data_plane/memcpy_collectives.h"
#include "server/data_plane/mesh_collectives.h"
#include "server/data_plane/mesh_connector.h"
#include "server/data_plane/nccl_connector.h"
#include "server/data_plane/nccl_key.h"
#include "server/data_plane/replicated_collectives.h"

namespace paramshard::server {
namespace {

using Engines = std::vector<std::unique_ptr<Collectives>>;

int LocalRanks(const EngineSpec& spec) { return spec.topology->rank_count(); }

int MostSumSources(const EngineSpec& spec) { return spec.most_sum_sources.value_or(spec.topology->most_sum_sources()); }

// Mesh of one of this daemon's ranks.
struct RankPlan {
  int local_rank = 0;
  MeshPlan plan;
};

// A shard group has two meshes for each rank: for gathers and for reductions.
constexpr int kMeshesPerRank = 2;

MeshPlan PlanOverWorld(const EngineSpec& spec, int local_rank, int queue) {
  MeshPlan plan;
  plan.self = spec.topology->first_rank() + local_rank;
  for (int node = 0; node < spec.topology->nodes(); ++node) {
    for (int device = 0; device < spec.topology->device_counts()[node]; ++device) {
      const int rank = static_cast<int>(plan.members.size());
      plan.members.push_back({{node, rank}, device * kMeshesPerRank + queue});
    }
  }
  return plan;
}

// Plans a mesh over the ranks of this daemon, whose first such mesh is `first_mesh` among its plans.
MeshPlan PlanInside(const EngineSpec& spec, int first_mesh, int local_rank, int queue) {
  MeshPlan plan;
  plan.self = local_rank;
  for (int device = 0; device < LocalRanks(spec); ++device) {
    const MeshMember member{spec.topology->node(), spec.topology->first_rank() + device};
    plan.members.push_back({member, first_mesh + device * kMeshesPerRank + queue});
  }
  return plan;
}

// Plans a mesh over the ranks of one index in every daemon that takes part. Each rank has one, for reductions.
MeshPlan PlanOverReplicas(const EngineSpec& spec, int local_rank) {
  MeshPlan plan;
  for (const int node : spec.topology->active()) {
    if (node == spec.topology->node()) plan.self = static_cast<int>(plan.members.size());
    plan.members.push_back({{node, node * spec.topology->rank_count() + local_rank}, local_rank});
  }
  return plan;
}

using Meshes = std::vector<std::unique_ptr<Mesh>>;

absl::StatusOr<Meshes> ConnectOverNccl(const EngineSpec& spec, const std::vector<RankPlan>& plans,
                                       const MeshConnection& connection) {
  std::vector<int> devices;
  for (const RankPlan& plan : plans) devices.push_back(spec.memory[plan.local_rank].device->id().index);
  return ConnectNcclMeshes({connection, std::move(devices), spec.settings.nccl_library});
}

absl::StatusOr<Meshes> ConnectOverTcp(const MeshConnection& connection) {
  ASSIGN_OR_RETURN(auto meshes, ConnectMeshes(connection));
  return Meshes(std::make_move_iterator(meshes.begin()), std::make_move_iterator(meshes.end()));
}

Meshes Counted(Meshes meshes, MovedBy moved_by, MetricRegistry& metrics) {
  for (auto& mesh : meshes) mesh = std::make_unique<CountedMesh>(std::move(mesh), moved_by, metrics);
  return meshes;
}

// Returns the meshes in the order of the plans.
absl::StatusOr<Meshes> Connect(const EngineSpec& spec, const std::vector<RankPlan>& plans) {
  PARAMSHARD_CHECK(spec.rendezvous != nullptr);
  MeshConnection connection{.node = spec.topology->node(),
                            .nodes = spec.topology->nodes(),
                            .plans = {},
                            .rendezvous = spec.rendezvous,
                            .timeout = spec.timeout,
                            .listen_address = spec.settings.data_address,
                            .abort = spec.abort,
                            .links = spec.links,
                            .epoch = spec.epoch};
  for (const RankPlan& plan : plans) connection.plans.push_back(plan.plan);
  auto meshes = spec.topology->on_gpus() ? ConnectOverNccl(spec, plans, connection) : ConnectOverTcp(connection);
  const MovedBy moved_by = spec.topology->on_gpus() ? MovedBy::kNccl : MovedBy::kGloo;
  if (meshes.ok()) return Counted(*std::move(meshes), moved_by, *spec.metrics);
  return absl::Status(meshes.status().code(),
                      absl::StrCat("connect engines of ", spec.model->name, ": ", meshes.status().message()));
}

LocalGroup GroupOf(const EngineSpec& spec) { return {spec.model, spec.layout, spec.memory, spec.metrics}; }

absl::StatusOr<Engines> MakeDirectEngines(const EngineSpec& spec, bool sums_at_commit) {
  if (spec.topology->on_gpus()) return MakeCopyEngines(GroupOf(spec), sums_at_commit);
  Engines engines(LocalRanks(spec));
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    ASSIGN_OR_RETURN(engines[rank], MemcpyCollectives::Create(GroupOf(spec), rank, sums_at_commit));
  }
  return engines;
}

// Trainers may have taken the memory since the model was opened. Then sums are made at the push, unless the model
// requires otherwise.
absl::StatusOr<Engines> MakeOnlyEngines(const EngineSpec& spec) {
  absl::StatusOr<Engines> engines = MakeDirectEngines(spec, spec.sums_at_commit);
  const bool insists = spec.model->gradient_sums.has_value();
  if (!spec.sums_at_commit || insists || !absl::IsResourceExhausted(engines.status())) return engines;
  return MakeDirectEngines(spec, /*sums_at_commit=*/false);
}

// The meshes come in the order of ranks: for each one for gathers, one for reductions.
absl::StatusOr<Engines> MakeMeshEngines(const EngineSpec& spec, absl::Span<std::unique_ptr<Mesh>> meshes) {
  Engines engines;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    const MeshCollectives::Options options{spec.model,   spec.layout,          spec.memory[rank],
                                           spec.timeout, MostSumSources(spec), rank};
    const int first = rank * kMeshesPerRank;
    ASSIGN_OR_RETURN(engines.emplace_back(),
                     MeshCollectives::Create(options, std::move(meshes[first]), std::move(meshes[first + 1])));
  }
  return engines;
}

// Plans the meshes of every rank and queue.
std::vector<RankPlan> PlanGroup(const EngineSpec& spec, absl::FunctionRef<MeshPlan(int local_rank, int queue)> plan) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < LocalRanks(spec); ++rank) {
    for (int queue = 0; queue < kMeshesPerRank; ++queue) plans.push_back({rank, plan(rank, queue)});
  }
  return plans;
}

absl::StatusOr<Engines> ConnectReplicatedEngines(const EngineSpec& spec) {
  // A daemon that takes part alone has no replicas to sum with.
  const int sums = spec.topology->active().size() > 1 ? LocalRanks(spec) : 0;
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < sums; ++rank) plans.push_back({rank, PlanOverReplicas(spec, rank)});
  if (spec.topology->group_has_mesh()) {
    const auto inside = [&](int rank, int queue) { return PlanInside(spec, sums, rank, queue); };
    for (RankPlan& plan : PlanGroup(spec, inside)) plans.push_back(std::move(plan));
  }
  ASSIGN_OR_RETURN(Meshes meshes, Connect(spec, plans));
  ASSIGN_OR_RETURN(Engines engines, spec.topology->group_has_mesh()
                                        ? MakeMeshEngines(spec, absl::MakeSpan(meshes).subspan(sums))
                                        : MakeDirectEngines(spec, /*sums_at_commit=*/false));
  for (int rank = 0; rank < sums; ++rank) {
    const ReplicatedCollectives::Options options{spec.model,   spec.layout,         rank, spec.memory[rank].device,
                                                 spec.timeout, MostSumSources(spec)};
    ASSIGN_OR_RETURN(engines[rank],
                     ReplicatedCollectives::Create(options, std::move(engines[rank]), std::move(meshes[rank])));
  }
  return engines;
}

// Connects one shard group over the world.
absl::StatusOr<Engines> ConnectMeshEngines(const EngineSpec& spec) {
  const auto over_world = [&](int rank, int queue) { return PlanOverWorld(spec, rank, queue); };
  ASSIGN_OR_RETURN(Meshes meshes, Connect(spec, PlanGroup(spec, over_world)));
  return MakeMeshEngines(spec, absl::MakeSpan(meshes));
}

}  // namespace

absl::StatusOr<std::string> LoadEngineLibraries(absl::Span<const Device> devices, int nodes,
                                                const EngineSettings& settings) {
  const bool on_gpus = !devices.empty() && devices.front().kind == DeviceKind::kCuda;
  const bool meshes = nodes > 1 || (settings.mesh_inside && devices.size() > 1);
  std::string key;
  if (!settings.nccl_psk_file.empty()) {
    ASSIGN_OR_RETURN(key, ReadNcclKey(settings.nccl_psk_file));
  }
  if (!on_gpus || !meshes) return std::string();
  ASSIGN_OR_RETURN(const std::string version, LoadNccl(settings.nccl_library, key));
  return absl::StrCat("NCCL ", version);
}

absl::StatusOr<Engines> ConnectEngines(const EngineSpec& spec) {
  PARAMSHARD_CHECK(LocalRanks(spec) == static_cast<int>(spec.memory.size()));
  if (spec.topology->has_replicas()) return ConnectReplicatedEngines(spec);
  return spec.topology->group_has_mesh() ? ConnectMeshEngines(spec) : MakeOnlyEngines(spec);
}

}  // namespace paramshard::server
