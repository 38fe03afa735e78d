#include "common/model/unit_placer.h"

#include <algorithm>
#include <utility>

#include "common/model/plane_bytes.h"
#include "kernels/base/align.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

constexpr int64_t kAmaxAlignment = sizeof(float);

Format FormatOf(const ParameterSpec& spec) { return EncodingOf(spec.encoding).format; }

// A parameter with a column-wise plane needs its row-wise plane only forward; without one, the
// row-wise plane serves both phases.
PieceRun RunOf(Format format, Plane plane) {
  if (plane == Plane::kColumnWise) return PieceRun::kBackwardOnly;
  return HasColumnPlane(format) ? PieceRun::kForwardOnly : PieceRun::kBothPhases;
}

bool BringsRun(Phase phase, PieceRun run) {
  if (phase == Phase::kForward) return run != PieceRun::kBackwardOnly;
  return phase == Phase::kBoth || run != PieceRun::kForwardOnly;
}

// Calls `visit(plane, layout)` for the planes of a parameter, row-wise first. All of this file uses
// this order.
template <typename Visit>
void ForEachPlane(ParameterLayout& parameter, Visit visit) {
  visit(Plane::kRowWise, parameter.row_wise);
  if (parameter.column_wise) visit(Plane::kColumnWise, *parameter.column_wise);
}

void Shift(int64_t& offset, int64_t by) {
  if (offset >= 0) offset += by;
}

SmallRun RunOfPhase(const SmallExtentPacker& small, Phase phase) {
  SmallRun found{.begin = small.RunBegin(phase == Phase::kBackward ? PieceRun::kBothPhases : PieceRun::kForwardOnly)};
  for (const PieceRun run : {PieceRun::kForwardOnly, PieceRun::kBothPhases, PieceRun::kBackwardOnly}) {
    if (BringsRun(phase, run)) found.bytes += small.RunBytes(run);
  }
  return found;
}

}  // namespace

UnitLayout UnitPlacer::Place(const UnitSpec& spec, absl::Span<const int> owners,
                             absl::Span<const std::vector<OwnedRows>> owned) {
  unit_ = {};
  unit_.parameters.resize(spec.parameters.size());
  small_.Clear();
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    ParameterLayout& parameter = unit_.parameters[i];
    if (HasColumnPlane(FormatOf(spec.parameters[i]))) parameter.column_wise.emplace();
    if (owners[i] >= 0) {
      parameter.owner = owners[i];
    } else if (!owned[i].empty()) {
      PlaceOwned(spec.parameters[i], owned[i], parameter);
    } else {
      PlaceLarge(spec.parameters[i], parameter);
    }
  }
  // Small parameters follow all scales of large parameters, whose offsets are equal on all ranks.
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    if (owners[i] >= 0) PlaceSmall(spec.parameters[i], unit_.parameters[i]);
  }
  PlaceSmallExtent(spec);
  PlaceGradients(spec);
  return std::move(unit_);
}

void UnitPlacer::PlaceLarge(const ParameterSpec& spec, ParameterLayout& parameter) {
  parameter.rows_per_rank = RowsPerRank(spec.rows(), GranuleRows(FormatOf(spec)), ranks_);
  const int64_t extent_rows = std::min(parameter.rows_per_rank, spec.rows());
  ForEachPlane(parameter, [&](Plane plane, PlaneLayout& layout) { PlaceLargePlane(spec, plane, extent_rows, layout); });
}

void UnitPlacer::PlaceLargePlane(const ParameterSpec& spec, Plane plane, int64_t extent_rows, PlaneLayout& layout) {
  layout.data_stride = DataBytes(EncodingOf(spec.encoding), extent_rows, spec.columns());
  layout.arena_offset = unit_.arena_bytes;
  unit_.arena_bytes += AlignUp(layout.data_stride, kRegionAlignment);
  PlaceRegions(spec, plane, ranks_ * layout.data_stride, layout);
  PlaceScales(spec, plane, extent_rows, std::nullopt, layout);
}

// The arenas' part of it differs by rank: Layout places it behind all units.
void UnitPlacer::PlaceOwned(const ParameterSpec& spec, absl::Span<const OwnedRows> owned, ParameterLayout& parameter) {
  for (const OwnedRows& extent : owned) parameter.owned.push_back({.rank = extent.rank, .rows = extent.rows});
  ForEachPlane(parameter, [&](Plane plane, PlaneLayout& layout) {
    PlaceRegions(spec, plane, PackPlane(EncodingOf(spec.encoding), plane, spec.rows(), spec.columns()).bytes, layout);
  });
}

void UnitPlacer::PlaceRegions(const ParameterSpec& spec, Plane plane, int64_t bytes, PlaneLayout& layout) {
  for (const Phase phase : kPhases) {
    if (!Brings(FormatOf(spec), plane, phase)) continue;
    int64_t& slot_bytes = unit_.slot_bytes[phase];
    layout.slot_offset[phase] = slot_bytes;
    slot_bytes += AlignUp(bytes, kRegionAlignment);
  }
}

void UnitPlacer::PlaceScales(const ParameterSpec& spec, Plane plane, int64_t rows, std::optional<int> owner,
                             PlaneLayout& layout) {
  const int64_t scale_bytes = ScaleBytes(EncodingOf(spec.encoding), plane, rows, spec.columns());
  if (scale_bytes == 0) return;
  const int64_t amax_bytes = AmaxBytes(FormatOf(spec));
  const int64_t amax_begin = AlignUp(scale_bytes, kAmaxAlignment);
  const int64_t bytes = amax_bytes > 0 ? amax_begin + amax_bytes : scale_bytes;
  const PieceRun run = RunOf(FormatOf(spec), plane);
  layout.scale_offset = owner.has_value() ? small_.AddToOwner(run, *owner, bytes) : small_.AddToAll(run, bytes);
  if (amax_bytes > 0) layout.amax_offset = layout.scale_offset + amax_begin;
}

void UnitPlacer::PlaceSmall(const ParameterSpec& spec, ParameterLayout& parameter) {
  const int owner = *parameter.owner;
  ForEachPlane(parameter, [&](Plane plane, PlaneLayout& layout) {
    const PieceRun run = RunOf(FormatOf(spec), plane);
    layout.small_data_offset =
        small_.AddToOwner(run, owner, DataBytes(EncodingOf(spec.encoding), spec.rows(), spec.columns()));
    PlaceScales(spec, plane, spec.rows(), owner, layout);
  });
}

void UnitPlacer::PlaceSmallExtent(const UnitSpec& spec) {
  // Offsets count from their run until all runs are final.
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    ForEachPlane(unit_.parameters[i], [&](Plane plane, PlaneLayout& layout) {
      const int64_t begin = small_.RunBegin(RunOf(FormatOf(spec.parameters[i]), plane));
      Shift(layout.small_data_offset, begin);
      Shift(layout.scale_offset, begin);
      Shift(layout.amax_offset, begin);
    });
  }
  for (const Phase phase : kPhases) {
    SmallRun& run = unit_.small[phase];
    int64_t& slot_bytes = unit_.slot_bytes[phase];
    run = RunOfPhase(small_, phase);
    run.slot_offset = slot_bytes;
    slot_bytes += ranks_ * run.bytes;
  }
  unit_.small_extent_offset = unit_.arena_bytes;
  unit_.arena_bytes += unit_.small[Phase::kBoth].bytes;
}

void UnitPlacer::PlaceGradients(const UnitSpec& spec) {
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    if (!parameter.trainable) continue;
    unit_.parameters[i].gradient_offset = unit_.gradient_bytes;
    const int64_t bytes = parameter.rows() * parameter.columns() * GradientBytes(parameter.gradient_type);
    unit_.gradient_bytes += AlignUp(bytes, kRegionAlignment);
  }
}

}  // namespace paramshard
