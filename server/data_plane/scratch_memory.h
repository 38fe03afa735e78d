// Sizes of the memory that engines allocate for themselves on their rank's device, for received slices of gradients and
// for partial sums. Pure functions of model and layout, so that a model's budget is known before its first epoch.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_SCRATCH_MEMORY_H_
#define PARAMSHARD_SERVER_DATA_PLANE_SCRATCH_MEMORY_H_

#include <cstdint>

#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/data_plane/topology.h"

namespace paramshard::server {

// Returns all bytes that the engine of this daemon's `local` rank will hold: Collectives::scratch_bytes.
// `sums_at_commit`: see EngineSpec.
int64_t ScratchBytes(const ModelSpec& model, const Layout& layout, const Topology& topology, int local,
                     bool sums_at_commit);

// Parts of ScratchBytes. First the bytes received from all other ranks: for one unit, the slices that the rank owns,
// each padded to a multiple of `alignment` bytes; and for its largest unit.
int64_t UnitReceiveBytes(const ModelSpec& model, const Layout& layout, int rank, int unit, int64_t alignment);
int64_t ReceiveMemoryBytes(const ModelSpec& model, const Layout& layout, int rank, int64_t alignment);
// Elements of the rank's extents of a unit; and of its largest unit, rounded up to a cache line.
int64_t PartialElements(const Layout& layout, int rank, int unit);
int64_t LargestPartialElements(const ModelSpec& model, const Layout& layout, int rank);
// Bytes of an fp32 sum of the largest unit and of one block of it (replica_blocks.h) for each of `nodes` replicas:
// twice the sum, for any number of replicas.
int64_t PartialSumBytes(const ModelSpec& model, const Layout& layout, int rank, int nodes);

// Bytes of an fp32 sum of the rank's padded extents of its largest unit, if the group has more members than a device
// adds at a time; else 0.
int64_t ChainedSumBytes(const ModelSpec& model, const Layout& layout, int rank, int members, int most_sum_sources);

// Rounds up to a multiple of `alignment`.
constexpr int64_t Padded(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Padding of slices: for the loads of the GPU's kernels, and for cache lines.
inline constexpr int64_t kCopyEngineSliceAlignment = 256;
inline constexpr int64_t kMeshSliceAlignment = 64;

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_SCRATCH_MEMORY_H_
