// The daemon's place in the world.
#ifndef PARAMSHARD_SERVER_TRAINING_WORLD_H_
#define PARAMSHARD_SERVER_TRAINING_WORLD_H_

#include <vector>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/engines.h"
#include "server/device/compute_device.h"
#include "server/observe/metric_registry.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

struct World {
  Cluster* cluster = nullptr;
  std::vector<ComputeDevice*> devices;  // of this daemon; they outlive all users of this world
  int first_rank = 0;
  int world_size = 1;
  EngineSettings engines = {};
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives all users of this world

  int rank_count() const { return static_cast<int>(devices.size()); }
  bool Serves(int rank) const { return rank >= first_rank && rank < first_rank + rank_count(); }
  // Returns what broke one of the devices.
  absl::Status CheckDevices() const {
    for (const ComputeDevice* device : devices) RETURN_IF_ERROR(device->health().status());
    return absl::OkStatus();
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_WORLD_H_
