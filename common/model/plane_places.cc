#include "common/model/plane_places.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

ByteRange WholeData(const ParameterSpec& spec, int64_t offset) {
  return {.offset = offset, .bytes = DataBytes(EncodingOf(spec.encoding), spec.rows(), spec.columns())};
}

// Returns true for formats with one scale for the tensor: every rank has the same.
bool HasTensorScale(Format format) { return TraitsOf(format).row_wise_block.rows == kUnbounded; }

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

}  // namespace

PlanePlace PlaceInSlot(const Layout& layout, int unit, int parameter, Plane plane, Phase phase) {
  const ParameterSpec& spec = layout.spec().units[unit].parameters[parameter];
  const ParameterLayout& place = layout.units()[unit].parameters[parameter];
  const PlaneLayout& in_plane = PlaneOf(place, plane);
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
  const UnitLayout& in_unit = layout.units()[unit];
  const ParameterLayout& place = in_unit.parameters[parameter];
  const PlaneLayout& in_plane = PlaneOf(place, plane);
  const int64_t small = in_unit.arena_offset + in_unit.small_extent_offset;
  const Encoding encoding = EncodingOf(spec.encoding);
  PlanePlace result;
  result.data = WholeData(spec, place.owner.has_value() ? small + in_plane.small_data_offset
                                                        : in_unit.arena_offset + in_plane.arena_offset);
  const int64_t bytes = ScaleBytes(encoding, plane, spec.rows(), spec.columns());
  if (bytes > 0) result.scales.push_back({small + in_plane.scale_offset, bytes});
  result.amax = {small + in_plane.amax_offset, AmaxBytes(encoding.format)};
  return result;
}

}  // namespace paramshard
