// Memory of one rank's part of a model, and the addresses of its extents in it.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_MEMORY_H_
#define PARAMSHARD_SERVER_STATE_SHARD_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/model/state_tensor.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/fused_step.h"
#include "kernels/reduce/gradient.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"
#include "server/device/state_memory.h"
#include "server/state/shard_extents.h"

namespace paramshard::server {

// Owns the arena of planes; masters, moments and gradient accumulators lie in a StateMemory. Addresses are constant;
// the shard says who may touch the bytes.
//
// A master with a remainder has its upper half in the arena, unless steps move it: it is the row-wise plane, which no
// encoding writes. On the host its pages are sealed against trainers' writes; on a GPU the state then rests on the
// client library's promise to map planes read-only.
class ShardMemory {
 public:
  // Allocates on `device`, which outlives the memory, and so does `memory`; null: memory of its own. `world_rank` is in
  // the names of the pieces. RESOURCE_EXHAUSTED; DATA_LOSS adopted memory that is not this state's.
  static absl::StatusOr<std::unique_ptr<ShardMemory>> Allocate(ShardExtents extents, ComputeDevice* device,
                                                               StateMemory* memory, int world_rank);

  const ShardExtents& extents() const { return extents_; }
  ComputeDevice& device() const { return *device_; }
  const Memory& planes() const { return planes_; }
  // Returns host memory for the planes of what has no master; null where steps do not move the state.
  const Memory* plane_copy() const { return plane_copy_; }

  // Returns everything of an extent; the state where it lies before steps move it, also below.
  ExtentTensors TensorsOf(const ShardExtent& extent) const;
  // Requires a trainable parameter.
  MutableGradient GradientOf(const ShardExtent& extent) const;
  MutablePlane PlaneOf(const ShardExtent& extent, Plane plane) const;
  // Returns the begin of a stored array, in a form that RowOf() has for the parameter.
  uint8_t* ArrayOf(const ShardExtent& extent, StateTensor tensor, TensorForm form) const;

 private:
  ShardMemory(ShardExtents extents, ComputeDevice* device) : extents_(std::move(extents)), device_(device) {}
  absl::Status AllocatePieces(StateMemory& memory, int world_rank);
  OptimizerState StateOf(const ShardExtent& extent) const;
  uint8_t* BeginOf(const ShardExtent& extent, int array) const;

  const ShardExtents extents_;
  ComputeDevice* const device_;
  std::unique_ptr<StateMemory> own_memory_;  // null where the state lies in another's
  const Memory* master_ = nullptr;
  const Memory* gradients_ = nullptr;
  PerMoment<const Memory*> moments_ = {};
  const Memory* plane_copy_ = nullptr;
  Memory planes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_MEMORY_H_
