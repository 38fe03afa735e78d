#include "server/state/plane_check.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"

namespace paramshard::server {
namespace {

// One plane's memory on the host.
struct HostPlane {
  std::vector<uint8_t> data, scales, amax;

  explicit HostPlane(const PlaneViews& sizes)
      : data(sizes.data.size()), scales(sizes.scales.size()), amax(sizes.amax.size()) {}
  MutablePlane View() { return {.data = data.data(), .scales = scales.data(), .amax = amax.data()}; }
  bool SameAs(const PlaneViews& served) const {
    return served.data.bytes() == data && served.scales.bytes() == scales && served.amax.bytes() == amax;
  }
};

absl::StatusOr<bool> PartMatches(const Shard& shard, const ShardExtent& extent, const ExtentPart& part)
    ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
  if (shard.extents().HasRemainder(extent)) {
    ASSIGN_OR_RETURN(const HostView weights,
                     shard.arrays().StoredArray(extent, StateTensor::kMaster, TensorForm::kElements, part));
    ASSIGN_OR_RETURN(const std::vector<PlaneViews> served, PlaneBytes(shard.memory(), extent, part.rows));
    return served[0].data.bytes() == weights.bytes();
  }
  ASSIGN_OR_RETURN(const std::vector<float> master, shard.arrays().Read(extent, StateTensor::kMaster, part));
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> served, PlaneBytes(shard.memory(), extent, part.rows));
  std::vector<HostPlane> again(served.begin(), served.end());
  EncodePlanes(EncodingOf(shard.extents().Spec(extent).encoding), master.data(), part.rows.size(), part.columns,
               again[0].View(), again.size() > 1 ? again[1].View() : MutablePlane{}, shard.numbers(extent).scaling);
  return std::equal(served.begin(), served.end(), again.begin(),
                    [](const PlaneViews& view, const HostPlane& plane) { return plane.SameAs(view); });
}

}  // namespace

absl::StatusOr<bool> PlanesMatchMaster(const Shard& shard, const ShardExtent& extent) {
  const ShardExtents& extents = shard.extents();
  // The plane is a part of the master, or all of the parameter.
  if (!extents.HasMaster(extent) || (extents.HasRemainder(extent) && !extent.has_weights())) return true;
  for (const ExtentPart& part : extents.Parts(extent)) {
    ASSIGN_OR_RETURN(const bool match, PartMatches(shard, extent, part));
    if (!match) return false;
  }
  return true;
}

}  // namespace paramshard::server
