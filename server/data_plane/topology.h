// The place of a model in the world.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_TOPOLOGY_H_
#define PARAMSHARD_SERVER_DATA_PLANE_TOPOLOGY_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/device.h"

namespace paramshard::server {

// Describes which ranks share a model's shards, which daemons hold replicas of it, and what moves its bytes. Made once
// with the model, from the daemon's settings and the spec; used by budget, engines and epochs. An immutable value.
//
// Ranks of the world count the devices of all daemons in order. `local` ranks count those of this daemon from 0. A
// shard group is `shard_size` consecutive ranks, which its group ranks count from 0. It lies inside a daemon, and then
// every daemon holds a replica; or it is the whole world. An epoch may have only some of the replicas: `active` ranks
// count the devices of only these daemons.
class Topology {
 public:
  struct World {
    std::vector<int> device_counts;             // of every daemon, in the order of nodes
    int node = 0;                               // this daemon
    DeviceKind device_kind = DeviceKind::kCpu;  // of all devices
    bool mesh_inside = false;                   // see EngineSettings
  };

  // The default shard size is the number of the daemon's devices. INVALID_ARGUMENT a size that is neither that nor the
  // world's; replicas in daemons with different numbers of devices.
  static absl::StatusOr<Topology> Create(World world, std::optional<int> shard_size);

  // Returns the topology of an epoch of these daemons, ascending, this one among them: all, or some that hold replicas.
  Topology Among(std::vector<int> active) const;

  int nodes() const { return static_cast<int>(world_.device_counts.size()); }
  int node() const { return world_.node; }
  const std::vector<int>& device_counts() const { return world_.device_counts; }
  int world_size() const;
  int shard_size() const { return shard_size_; }

  const std::vector<int>& active() const { return active_; }
  int active_world_size() const;
  int first_active_rank() const;

  // The ranks of this daemon.
  int rank_count() const { return world_.device_counts[world_.node]; }
  int first_rank() const;
  int GroupRank(int local) const { return (first_rank() + local) % shard_size_; }
  // Inverse of GroupRank, for a group rank that this daemon serves.
  int LocalRank(int group_rank) const { return group_rank - GroupRank(0); }

  // True if one shard group spans several daemons.
  bool spans_daemons() const { return nodes() > 1 && shard_size_ == world_size(); }
  // True if several daemons hold a replica each.
  bool has_replicas() const { return nodes() > 1 && !spans_daemons(); }

  bool on_gpus() const { return world_.device_kind == DeviceKind::kCuda; }
  // True if a mesh moves the bytes inside a shard group; else each rank copies (memcpy, copy engines).
  bool group_has_mesh() const { return spans_daemons() || (world_.mesh_inside && rank_count() > 1); }
  // True if an epoch needs a rendezvous to connect its engines.
  bool needs_rendezvous() const { return nodes() > 1 || group_has_mesh(); }
  // Largest number of sources that a device adds at a time.
  int most_sum_sources() const;
  // True if sums of gradients may wait for the commit, because this daemon has all slices.
  bool may_sum_at_commit() const { return nodes() == 1 && !world_.mesh_inside; }

 private:
  Topology(World world, int shard_size);

  World world_;
  int shard_size_;
  std::vector<int> active_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_TOPOLOGY_H_
