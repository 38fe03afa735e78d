// Layout as a message, from which a client computes every address: offsets are absolute within
// arena and slot.
#include "server/layout/layout.h"

namespace paramshard::server {
namespace {

constexpr int kForward = static_cast<int>(Use::kForward);
constexpr int kBackward = static_cast<int>(Use::kBackward);
constexpr int kBoth = static_cast<int>(Use::kBoth);

v1::PlaneLayout ToProto(const PlaneLayout& plane, int64_t unit_arena_offset) {
  v1::PlaneLayout proto;
  proto.set_data_stride(plane.data_stride);
  proto.set_arena_offset(plane.arena_offset < 0 ? -1 : unit_arena_offset + plane.arena_offset);
  proto.set_forward_offset(plane.slot_offset[kForward]);
  proto.set_backward_offset(plane.slot_offset[kBackward]);
  proto.set_both_offset(plane.slot_offset[kBoth]);
  proto.set_small_data_offset(plane.small_data_offset);
  proto.set_scale_offset(plane.scale_offset);
  proto.set_amax_offset(plane.amax_offset);
  return proto;
}

v1::ParameterLayout ToProto(const ParameterSpec& spec, const ParameterLayout& parameter, int64_t unit_arena_offset,
                            int64_t landing) {
  v1::ParameterLayout proto;
  proto.set_rows(spec.rows);
  proto.set_columns(spec.columns);
  proto.set_rows_per_rank(parameter.rows_per_rank);
  if (parameter.owner.has_value()) proto.set_owner(*parameter.owner);
  *proto.mutable_row_wise() = ToProto(parameter.row_wise, unit_arena_offset);
  if (parameter.column_wise) {
    *proto.mutable_column_wise() = ToProto(*parameter.column_wise, unit_arena_offset);
  }
  proto.set_gradient_offset(parameter.gradient_offset);
  proto.set_landing_offset(landing + parameter.landing_offset);
  return proto;
}

v1::SmallExtentLayout ToProto(const SmallRun& run, int64_t small_extent_arena_offset) {
  v1::SmallExtentLayout proto;
  proto.set_arena_offset(small_extent_arena_offset + run.begin);
  proto.set_slot_offset(run.slot_offset);
  proto.set_stride(run.bytes);
  return proto;
}

v1::UnitLayout ToProto(const UnitSpec& spec, const UnitLayout& unit, int64_t landing) {
  v1::UnitLayout proto;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    *proto.add_parameters() = ToProto(spec.parameters[i], unit.parameters[i], unit.arena_offset, landing);
  }
  const int64_t small_extent = unit.arena_offset + unit.small_extent_offset;
  *proto.mutable_forward() = ToProto(unit.small[kForward], small_extent);
  *proto.mutable_backward() = ToProto(unit.small[kBackward], small_extent);
  *proto.mutable_both() = ToProto(unit.small[kBoth], small_extent);
  proto.set_forward_bytes(unit.slot_bytes[kForward]);
  proto.set_backward_bytes(unit.slot_bytes[kBackward]);
  proto.set_both_bytes(unit.slot_bytes[kBoth]);
  proto.set_gradient_bytes(unit.gradient_bytes);
  if (unit.resident_slot.has_value()) proto.set_resident_slot(*unit.resident_slot);
  return proto;
}

}  // namespace

v1::ModelLayout Layout::ToProto() const {
  v1::ModelLayout proto;
  proto.set_ranks(ranks_);
  for (size_t i = 0; i < units_.size(); ++i) {
    *proto.add_units() = server::ToProto(spec_.units[i], units_[i], slots_bytes_);
  }
  proto.set_arena_bytes(arena_bytes_);
  proto.mutable_slot_offsets()->Add(slot_offsets_.begin(), slot_offsets_.end());
  proto.mutable_slot_bytes()->Add(slot_bytes_.begin(), slot_bytes_.end());
  proto.mutable_gradient_slot_offsets()->Add(gradient_slot_offsets_.begin(), gradient_slot_offsets_.end());
  proto.mutable_gradient_slot_bytes()->Add(gradient_slot_bytes_.begin(), gradient_slot_bytes_.end());
  proto.set_slots_bytes(slots_bytes_);
  proto.set_landing_bytes(landing_bytes_);
  return proto;
}

}  // namespace paramshard::server
