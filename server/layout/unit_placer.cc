#include "server/layout/unit_placer.h"

#include <algorithm>
#include <utility>

#include "kernels/base/align.h"

namespace paramshard::server {
namespace {

constexpr int64_t kAmaxAlignment = sizeof(float);
constexpr Use kUses[] = {Use::kForward, Use::kBackward, Use::kBoth};

// A parameter with a column-wise plane needs its row-wise one forward only; elsewhere the row-wise
// plane serves both.
Run RunOf(Format format, Plane plane) {
  if (plane == Plane::kColumnWise) return Run::kBackwardOnly;
  return HasColumnPlane(format) ? Run::kForwardOnly : Run::kBothPhases;
}

bool Brings(Use use, Run run) {
  if (use == Use::kForward) return run != Run::kBackwardOnly;
  return use == Use::kBoth || run != Run::kForwardOnly;
}

// Calls `visit(plane, layout)` for the planes of a parameter, row-wise first: the order of
// everything in this file.
template <typename Visit>
void ForEachPlane(ParameterLayout& parameter, Visit visit) {
  visit(Plane::kRowWise, parameter.row_wise);
  if (parameter.column_wise) visit(Plane::kColumnWise, *parameter.column_wise);
}

void Shift(int64_t& offset, int64_t by) {
  if (offset >= 0) offset += by;
}

SmallRun RunOfUse(const SmallExtentPacker& small, Use use) {
  SmallRun found{.begin = small.RunBegin(use == Use::kBackward ? Run::kBothPhases : Run::kForwardOnly)};
  for (const Run run : {Run::kForwardOnly, Run::kBothPhases, Run::kBackwardOnly}) {
    if (Brings(use, run)) found.bytes += small.RunBytes(run);
  }
  return found;
}

}  // namespace

UnitLayout UnitPlacer::Place(const UnitSpec& spec, absl::Span<const int> owners) {
  unit_ = {};
  unit_.parameters.resize(spec.parameters.size());
  small_.Clear();
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    ParameterLayout& parameter = unit_.parameters[i];
    if (HasColumnPlane(spec.parameters[i].encoding.format)) parameter.column_wise.emplace();
    if (owners[i] >= 0) {
      parameter.owner = owners[i];
    } else {
      PlaceLarge(spec.parameters[i], parameter);
    }
  }
  // After all scales of large parameters, whose offsets are equal on all ranks.
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    if (owners[i] >= 0) PlaceSmall(spec.parameters[i], unit_.parameters[i]);
  }
  PlaceSmallExtent(spec);
  PlaceGradients(spec);
  return std::move(unit_);
}

void UnitPlacer::PlaceLarge(const ParameterSpec& spec, ParameterLayout& parameter) {
  parameter.rows_per_rank = RowsPerRank(spec.rows, GranuleRows(spec.encoding.format), ranks_);
  const int64_t extent_rows = std::min(parameter.rows_per_rank, spec.rows);
  ForEachPlane(parameter, [&](Plane plane, PlaneLayout& layout) { PlaceLargePlane(spec, plane, extent_rows, layout); });
}

void UnitPlacer::PlaceLargePlane(const ParameterSpec& spec, Plane plane, int64_t extent_rows, PlaneLayout& layout) {
  const Run run = RunOf(spec.encoding.format, plane);
  layout.data_stride = DataBytes(spec.encoding, extent_rows, spec.columns);
  layout.arena_offset = unit_.arena_bytes;
  unit_.arena_bytes += AlignUp(layout.data_stride, kRegionAlignment);
  for (const Use use : kUses) {
    if (!Brings(use, run)) continue;
    int64_t& slot_bytes = unit_.slot_bytes[static_cast<int>(use)];
    layout.slot_offset[static_cast<int>(use)] = slot_bytes;
    slot_bytes += AlignUp(ranks_ * layout.data_stride, kRegionAlignment);
  }
  PlaceScales(spec, plane, extent_rows, std::nullopt, layout);
}

void UnitPlacer::PlaceScales(const ParameterSpec& spec, Plane plane, int64_t rows, std::optional<int> owner,
                             PlaneLayout& layout) {
  const int64_t scale_bytes = ScaleBytes(spec.encoding, plane, rows, spec.columns);
  if (scale_bytes == 0) return;
  const int64_t amax_bytes = AmaxBytes(spec.encoding.format);
  const int64_t amax_begin = AlignUp(scale_bytes, kAmaxAlignment);
  const int64_t bytes = amax_bytes > 0 ? amax_begin + amax_bytes : scale_bytes;
  const Run run = RunOf(spec.encoding.format, plane);
  layout.scale_offset = owner.has_value() ? small_.AddToOwner(run, *owner, bytes) : small_.AddToAll(run, bytes);
  if (amax_bytes > 0) layout.amax_offset = layout.scale_offset + amax_begin;
}

void UnitPlacer::PlaceSmall(const ParameterSpec& spec, ParameterLayout& parameter) {
  const int owner = *parameter.owner;
  ForEachPlane(parameter, [&](Plane plane, PlaneLayout& layout) {
    const Run run = RunOf(spec.encoding.format, plane);
    layout.small_data_offset = small_.AddToOwner(run, owner, DataBytes(spec.encoding, spec.rows, spec.columns));
    PlaceScales(spec, plane, spec.rows, owner, layout);
  });
}

void UnitPlacer::PlaceSmallExtent(const UnitSpec& spec) {
  // Until here offsets count from their run, as runs were not final.
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    ForEachPlane(unit_.parameters[i], [&](Plane plane, PlaneLayout& layout) {
      const int64_t begin = small_.RunBegin(RunOf(spec.parameters[i].encoding.format, plane));
      Shift(layout.small_data_offset, begin);
      Shift(layout.scale_offset, begin);
      Shift(layout.amax_offset, begin);
    });
  }
  for (const Use use : kUses) {
    SmallRun& run = unit_.small[static_cast<int>(use)];
    int64_t& slot_bytes = unit_.slot_bytes[static_cast<int>(use)];
    run = RunOfUse(small_, use);
    run.slot_offset = slot_bytes;
    slot_bytes += ranks_ * run.bytes;
  }
  unit_.small_extent_offset = unit_.arena_bytes;
  unit_.arena_bytes += unit_.small[static_cast<int>(Use::kBoth)].bytes;
}

void UnitPlacer::PlaceGradients(const UnitSpec& spec) {
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    unit_.parameters[i].gradient_offset = unit_.gradient_bytes;
    const int64_t bytes = parameter.rows * parameter.columns * GradientBytes(parameter.gradient_type);
    unit_.gradient_bytes += AlignUp(bytes, kRegionAlignment);
  }
}

}  // namespace paramshard::server
