#include "common/model/layout.h"

#include <algorithm>
#include <utility>

#include "common/model/plane_bytes.h"
#include "common/model/rank_loads.h"
#include "common/model/slot_sizes.h"
#include "common/model/unit_placer.h"
#include "kernels/base/align.h"
#include "kernels/base/check.h"

namespace paramshard {
namespace {

constexpr int64_t kSlotAlignment = 4096;

// Appends a rank's piece of a plane's data region in one phase.
void AppendData(const PlaneLayout& plane, Phase phase, int rank, int64_t arena_offset, int64_t bytes,
                std::vector<PieceCopy>& pieces) {
  const std::optional<int64_t> region = plane.slot_offset[phase];
  if (!region.has_value() || bytes == 0) return;
  pieces.push_back(
      {.source = arena_offset + plane.arena_offset, .target = *region + rank * plane.data_stride, .bytes = bytes});
}

}  // namespace

Layout::Layout(ModelSpec spec, int ranks) : spec_(std::move(spec)), ranks_(ranks) {
  PARAMSHARD_CHECK(1 <= ranks && ranks <= kMaxShardSize);
  const RankLoads loads(spec_, ranks_);
  imbalance_ = loads.Imbalance();
  PlaceUnits(loads.owners());
  PlaceGatherSlots();
  PlaceGradientSlots();
  PlaceLanding();
}

void Layout::PlaceUnits(const std::vector<int>& owners) {
  UnitPlacer placer(ranks_);
  absl::Span<const int> rest = owners;
  for (const UnitSpec& unit : spec_.units) {
    units_.push_back(placer.Place(unit, rest.first(unit.parameters.size())));
    units_.back().arena_offset = arena_bytes_;
    arena_bytes_ += units_.back().arena_bytes;
    rest.remove_prefix(unit.parameters.size());
  }
}

void Layout::PlaceGatherSlots() {
  std::vector<int64_t> ring_units;
  for (size_t i = 0; i < units_.size(); ++i) {
    const auto& bytes = units_[i].slot_bytes;
    if (spec_.units[i].reshard_after_forward)
      ring_units.push_back(std::max(bytes[Phase::kForward], bytes[Phase::kBackward]));
  }
  slot_bytes_ = SlotSizes(ring_units, spec_.gather_slots, spec_.large_gather_slots);
  for (size_t i = 0; i < units_.size(); ++i) {
    if (spec_.units[i].reshard_after_forward) continue;
    units_[i].resident_slot = static_cast<int>(slot_bytes_.size());
    slot_bytes_.push_back(units_[i].slot_bytes[Phase::kBoth]);
  }
  slot_offsets_ = AppendSlots(slot_bytes_);
}

void Layout::PlaceGradientSlots() {
  std::vector<int64_t> unit_bytes;
  for (const UnitLayout& unit : units_) {
    if (unit.gradient_bytes > 0) unit_bytes.push_back(unit.gradient_bytes);
  }
  gradient_slot_bytes_ = SlotSizes(unit_bytes, spec_.gradient_slots);
  gradient_slot_offsets_ = AppendSlots(gradient_slot_bytes_);
}

void Layout::PlaceLanding() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit].parameters.size(); ++i) {
      const ParameterSpec& spec = spec_.units[unit].parameters[i];
      if (!spec.trainable) continue;
      ParameterLayout& parameter = units_[unit].parameters[i];
      const int64_t rows = parameter.owner.has_value() ? spec.rows() : std::min(parameter.rows_per_rank, spec.rows());
      parameter.landing_offset = landing_bytes_;
      landing_bytes_ += AlignUp(rows * spec.columns() * GradientBytes(spec.gradient_type), kRegionAlignment);
    }
  }
}

std::vector<int64_t> Layout::AppendSlots(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets;
  for (const int64_t bytes : sizes) {
    offsets.push_back(slots_bytes_);
    slots_bytes_ += AlignUp(bytes, kSlotAlignment);
  }
  return offsets;
}

RowRange Layout::Extent(int unit, int parameter, int rank) const {
  const ParameterLayout& layout = units_[unit].parameters[parameter];
  const int64_t rows = Spec(unit, parameter).rows();
  if (layout.owner.has_value()) return {.begin = 0, .end = layout.owner == rank ? rows : 0};
  return CutRows(rows, layout.rows_per_rank, rank);
}

std::vector<PieceCopy> Layout::Pieces(int unit, Phase phase, int rank) const {
  const UnitLayout& layout = units_[unit];
  std::vector<PieceCopy> pieces;
  for (int i = 0; i < static_cast<int>(layout.parameters.size()); ++i) {
    const ParameterLayout& parameter = layout.parameters[i];
    if (parameter.owner.has_value()) continue;
    const ParameterSpec& spec = Spec(unit, i);
    const int64_t bytes = DataBytes(EncodingOf(spec.encoding), Extent(unit, i, rank).size(), spec.columns());
    AppendData(parameter.row_wise, phase, rank, layout.arena_offset, bytes, pieces);
    if (parameter.column_wise) {
      AppendData(*parameter.column_wise, phase, rank, layout.arena_offset, bytes, pieces);
    }
  }
  const SmallRun& small = layout.small[phase];
  if (small.bytes == 0) return pieces;
  pieces.push_back({.source = layout.arena_offset + layout.small_extent_offset + small.begin,
                    .target = small.slot_offset + rank * small.bytes,
                    .bytes = small.bytes});
  return pieces;
}

int64_t Layout::GatheredBytes(int unit, Phase phase) const {
  const UnitLayout& layout = units_[unit];
  int64_t bytes = ranks_ * layout.small[phase].bytes;
  for (int i = 0; i < static_cast<int>(layout.parameters.size()); ++i) {
    if (layout.parameters[i].owner.has_value()) continue;
    const ParameterSpec& spec = Spec(unit, i);
    const Encoding encoding = EncodingOf(spec.encoding);
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (Brings(encoding.format, plane, phase)) bytes += DataBytes(encoding, spec.rows(), spec.columns());
    }
  }
  return bytes;
}

std::vector<GradientSlice> Layout::Slices(int unit, int rank) const {
  std::vector<GradientSlice> slices;
  for (int i = 0; i < static_cast<int>(units_[unit].parameters.size()); ++i) {
    const RowRange rows = Extent(unit, i, rank);
    const ParameterSpec& spec = Spec(unit, i);
    if (rows.size() == 0 || !spec.trainable) continue;
    const int64_t row_bytes = spec.columns() * GradientBytes(spec.gradient_type);
    slices.push_back({.parameter = i,
                      .slot_offset = units_[unit].parameters[i].gradient_offset + rows.begin * row_bytes,
                      .elements = rows.size() * spec.columns()});
  }
  return slices;
}

std::vector<PieceCopy> Layout::LandingCopies(int unit, int rank, int gradient_slot,
                                             absl::Span<const int> absent_parameters) const {
  std::vector<PieceCopy> copies;
  for (const GradientSlice& slice : Slices(unit, rank)) {
    if (std::binary_search(absent_parameters.begin(), absent_parameters.end(), slice.parameter)) continue;
    copies.push_back({.source = gradient_slot_offsets_[gradient_slot] + slice.slot_offset,
                      .target = slots_bytes_ + units_[unit].parameters[slice.parameter].landing_offset,
                      .bytes = slice.elements * GradientBytes(Spec(unit, slice.parameter).gradient_type)});
  }
  return copies;
}

int64_t Layout::PlaneBytes(int unit, int parameter, int rank) const {
  const std::optional<int> owner = units_[unit].parameters[parameter].owner;
  if (owner.has_value() && owner != rank) return 0;
  const ParameterSpec& spec = Spec(unit, parameter);
  return AllPlaneBytes(EncodingOf(spec.encoding), Extent(unit, parameter, rank).size(), spec.columns());
}

}  // namespace paramshard
