#include "server/data_plane/scratch_memory.h"

#include <algorithm>

#include "kernels/reduce/gradient.h"
#include "server/data_plane/replica_blocks.h"

namespace paramshard::server {
namespace {

// Returns the largest value over all units.
template <typename BytesOfUnit>
int64_t Largest(const ModelSpec& model, BytesOfUnit bytes_of_unit) {
  int64_t largest = 0;
  for (int unit = 0; unit < static_cast<int>(model.units.size()); ++unit) {
    largest = std::max(largest, bytes_of_unit(unit));
  }
  return largest;
}

}  // namespace

int64_t UnitReceiveBytes(const ModelSpec& model, const Layout& layout, int rank, int unit, int64_t alignment) {
  int64_t bytes = 0;
  for (const GradientSlice& slice : layout.Slices(unit, rank)) {
    const ParameterSpec& parameter = model.units[unit].parameters[slice.parameter];
    bytes += Padded(slice.elements * GradientBytes(parameter.gradient_type), alignment);
  }
  return bytes * (layout.ranks() - 1);
}

int64_t ReceiveMemoryBytes(const ModelSpec& model, const Layout& layout, int rank, int64_t alignment) {
  return Largest(model, [&](int unit) { return UnitReceiveBytes(model, layout, rank, unit, alignment); });
}

int64_t PartialElements(const Layout& layout, int rank, int unit) {
  int64_t elements = 0;
  for (const GradientSlice& slice : layout.Slices(unit, rank)) elements += slice.elements;
  return elements;
}

int64_t LargestPartialElements(const ModelSpec& model, const Layout& layout, int rank) {
  return Padded(Largest(model, [&](int unit) { return PartialElements(layout, rank, unit); }),
                ReplicaBlocks::kAlignment);
}

int64_t PartialSumBytes(const ModelSpec& model, const Layout& layout, int rank, int nodes) {
  const auto block_of_unit = [&](int unit) {
    return ReplicaBlocks(PartialElements(layout, rank, unit), nodes).block_elements();
  };
  return (LargestPartialElements(model, layout, rank) + Largest(model, block_of_unit) * nodes) *
         static_cast<int64_t>(sizeof(float));
}

int64_t ChainedSumBytes(const ModelSpec& model, const Layout& layout, int rank, int members, int most_sum_sources) {
  if (members <= most_sum_sources) return 0;
  return Largest(model, [&](int unit) {
    int64_t bytes = 0;
    for (const GradientSlice& slice : layout.Slices(unit, rank)) {
      bytes += Padded(slice.elements * static_cast<int64_t>(sizeof(float)), kMeshSliceAlignment);
    }
    return bytes;
  });
}

int64_t ScratchBytes(const ModelSpec& model, const Layout& layout, const Topology& topology, int local,
                     bool sums_at_commit) {
  const int rank = topology.GroupRank(local);
  int64_t bytes = 0;
  if (sums_at_commit) {
    for (int unit = 0; unit < static_cast<int>(model.units.size()); ++unit) {
      bytes += UnitReceiveBytes(model, layout, rank, unit, kCopyEngineSliceAlignment);
    }
  } else if (topology.group_has_mesh()) {
    bytes += ReceiveMemoryBytes(model, layout, rank, kMeshSliceAlignment);
    bytes += ChainedSumBytes(model, layout, rank, layout.ranks(), topology.most_sum_sources());
  } else if (topology.on_gpus()) {
    bytes += ReceiveMemoryBytes(model, layout, rank, kCopyEngineSliceAlignment);
  }
  if (topology.has_replicas()) bytes += PartialSumBytes(model, layout, rank, topology.nodes());
  return bytes;
}

}  // namespace paramshard::server
