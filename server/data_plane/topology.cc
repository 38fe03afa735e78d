#include "server/data_plane/topology.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

absl::StatusOr<Topology> Topology::Create(World world, std::optional<int> shard_size) {
  const std::vector<int>& counts = world.device_counts;
  const int own = counts[world.node];
  const int all = std::accumulate(counts.begin(), counts.end(), 0);
  const int size = shard_size.value_or(own);
  const bool fits = std::all_of(counts.begin(), counts.end(), [&](int count) { return count == size; });
  if (fits || size == all) return Topology(std::move(world), size);
  if (size == own) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard size ", size, ": want ", all, ", all devices of the world: the daemons have ",
                     absl::StrJoin(counts, ", "), " devices, which cannot hold equal replicas"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "shard size ", size, ": want ", own, " (the devices of one daemon) or ", all, " (all devices of the world)"));
}

Topology::Topology(World world, int shard_size)
    : world_(std::move(world)), shard_size_(shard_size), active_(world_.device_counts.size()) {
  std::iota(active_.begin(), active_.end(), 0);
}

Topology Topology::Among(std::vector<int> active) const {
  Topology among = *this;
  among.active_ = std::move(active);
  return among;
}

int Topology::active_world_size() const {
  int ranks = 0;
  for (const int node : active_) ranks += world_.device_counts[node];
  return ranks;
}

int Topology::first_active_rank() const {
  int ranks = 0;
  for (const int node : active_) ranks += node < world_.node ? world_.device_counts[node] : 0;
  return ranks;
}

int Topology::world_size() const {
  return std::accumulate(world_.device_counts.begin(), world_.device_counts.end(), 0);
}

int Topology::most_sum_sources() const { return on_gpus() ? kMostSumSources : std::numeric_limits<int>::max(); }

int Topology::first_rank() const {
  return std::accumulate(world_.device_counts.begin(), world_.device_counts.begin() + world_.node, 0);
}

}  // namespace paramshard::server
