// Shard group that lies in one daemon, so that every rank's memory is accessible.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_LOCAL_GROUP_H_
#define PARAMSHARD_SERVER_DATA_PLANE_LOCAL_GROUP_H_

#include <cstdint>
#include <vector>

#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/data_plane/collectives.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

// A view: the model, the layout and the memory outlive it. Ranks are group ranks.
struct LocalGroup {
  const ModelSpec* model = nullptr;
  const Layout* layout = nullptr;
  std::vector<RankMemory> memory;                       // of every rank
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives it

  int ranks() const { return static_cast<int>(memory.size()); }

  // Returns the gradients of `slice` that `rank` has put into its gradient slot.
  const void* Gradients(int slot, const GradientSlice& slice, int rank) const;

  // Returns the gradients of its own slice that `rank` has put into its landing area.
  const void* Landed(const GradientSlice& slice, int rank) const;

  GradientType gradient_type(int unit, int parameter) const {
    return model->units[unit].parameters[parameter].gradient_type;
  }

  // The mover of bytes between the ranks.
  MovedBy moved_by() const {
    return memory.front().device->id().kind == DeviceKind::kCuda ? MovedBy::kCopyEngine : MovedBy::kMemcpy;
  }

  // Copies the pieces of `source` into the slot of `target`. Returns their bytes.
  int64_t CopyPieces(const GatherCall& call, int source, int target) const;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_LOCAL_GROUP_H_
