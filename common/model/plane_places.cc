#include "common/model/plane_places.h"

#include "common/model/plane_bytes.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

ByteRange WholeData(const ParameterSpec& spec, int64_t offset) {
  return {.offset = offset, .bytes = DataBytes(EncodingOf(spec.encoding), spec.rows(), spec.columns())};
}

const PlaneLayout& PlaneOf(const ParameterLayout& parameter, Plane plane) {
  return plane == Plane::kRowWise ? parameter.row_wise : *parameter.column_wise;
}

// Appends a part. Parts that lie one after the other become one, so no copy has to join them.
void AppendPart(std::vector<ByteRange>& parts, const ByteRange& next) {
  if (!parts.empty() && parts.back().offset + parts.back().bytes == next.offset) {
    parts.back().bytes += next.bytes;
  } else {
    parts.push_back(next);
  }
}

// Returns the place of an owned parameter's plane, whose region begins at `region`.
PlanePlace PackedPlace(const ParameterSpec& spec, Plane plane, int64_t region) {
  const PackedPlane packed = PackPlane(EncodingOf(spec.encoding), plane, spec.rows(), spec.columns());
  PlanePlace result{
      .data = {region, packed.data_bytes}, .scales = {}, .amax = {region + packed.amax_begin, packed.amax_bytes}};
  if (packed.scale_bytes > 0) result.scales.push_back({region + packed.scales_begin, packed.scale_bytes});
  return result;
}

}  // namespace

PlanePlace PlaceInSlot(const Layout& layout, int unit, int parameter, Plane plane, Phase phase) {
  const ParameterSpec& spec = layout.spec().units[unit].parameters[parameter];
  const ParameterLayout& place = layout.units()[unit].parameters[parameter];
  const PlaneLayout& in_plane = PlaneOf(place, plane);
  if (!place.owned.empty()) return PackedPlace(spec, plane, *in_plane.slot_offset[phase]);
  const SmallRun& small = layout.units()[unit].small[phase];
  // Offsets count from the whole small extent, of which a phase brings a part.
  const auto small_offset = [&](int rank, int64_t offset) {
    return small.slot_offset + rank * small.bytes + offset - small.begin;
  };
  const Encoding encoding = EncodingOf(spec.encoding);
  const int number_rank = place.owner.value_or(0);
  PlanePlace result;
  result.data = WholeData(spec, place.owner.has_value() ? small_offset(*place.owner, in_plane.small_data_offset)
                                                        : *in_plane.slot_offset[phase]);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    if (HasTensorScale(encoding.format) && rank != number_rank) continue;
    const int64_t rows = layout.Extent(unit, parameter, rank).size();
    const int64_t bytes = ScaleBytes(encoding, plane, rows, spec.columns());
    if (bytes > 0) AppendPart(result.scales, {small_offset(rank, in_plane.scale_offset), bytes});
  }
  result.amax = {small_offset(number_rank, in_plane.amax_offset), AmaxBytes(encoding.format)};
  return result;
}

PlanePlace PlaceInArena(const Layout& layout, int unit, int parameter, Plane plane) {
  const ParameterSpec& spec = layout.spec().units[unit].parameters[parameter];
  const ArenaPlace place = layout.PlaceInArena(unit, parameter, plane, /*rank=*/0);
  const Encoding encoding = EncodingOf(spec.encoding);
  PlanePlace result{
      .data = WholeData(spec, place.data), .scales = {}, .amax = {place.amax, AmaxBytes(encoding.format)}};
  const int64_t bytes = ScaleBytes(encoding, plane, spec.rows(), spec.columns());
  if (bytes > 0) result.scales.push_back({place.scales, bytes});
  return result;
}

}  // namespace paramshard
