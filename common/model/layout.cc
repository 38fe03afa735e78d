#include "common/model/layout.h"

#include <algorithm>
#include <utility>

#include "common/model/plane_bytes.h"
#include "common/model/rank_loads.h"
#include "common/model/slot_sizes.h"
#include "common/model/unit_placer.h"
#include "kernels/base/align.h"
#include "kernels/base/check.h"
#include "kernels/formats/format.h"

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

// Returns a rank's extent of an owned parameter, or null.
const OwnedExtent* ExtentOf(const ParameterLayout& parameter, int rank) {
  const auto found = std::lower_bound(parameter.owned.begin(), parameter.owned.end(), rank,
                                      [](const OwnedExtent& extent, int wanted) { return extent.rank < wanted; });
  return found == parameter.owned.end() || found->rank != rank ? nullptr : &*found;
}

int64_t OffsetOf(const OwnedExtent& extent, Plane plane) {
  return plane == Plane::kRowWise ? extent.row_wise_offset : extent.column_wise_offset;
}

// Appends what an owner contributes to a plane whose region begins at `region`. Owners begin at whole blocks, so their
// scales are parts of the whole matrix's. The last owner brings the numbers of the whole tensor.
void AppendPackedPieces(const ParameterSpec& spec, Plane plane, const OwnedExtent& extent, int64_t region,
                        std::vector<PieceCopy>& pieces) {
  const Encoding encoding = EncodingOf(spec.encoding);
  const int64_t columns = spec.columns();
  const PackedPlane own = PackPlane(encoding, plane, extent.rows.size(), columns);
  const PackedPlane whole = PackPlane(encoding, plane, spec.rows(), columns);
  const int64_t arena = OffsetOf(extent, plane);
  if (extent.rows.size() == spec.rows()) {
    pieces.push_back({.source = arena, .target = region, .bytes = whole.bytes});
    return;
  }
  const bool is_last = extent.rows.end == spec.rows();
  pieces.push_back(
      {.source = arena, .target = region + DataBytes(encoding, extent.rows.begin, columns), .bytes = own.data_bytes});
  if (HasTensorScale(encoding.format)) {
    if (is_last) pieces.push_back({arena + own.scales_begin, region + whole.scales_begin, own.scale_bytes});
  } else if (own.scale_bytes > 0) {
    const int64_t before = ScaleBytes(encoding, plane, extent.rows.begin, columns);
    pieces.push_back({arena + own.scales_begin, region + whole.scales_begin + before, own.scale_bytes});
  }
  if (is_last && own.amax_bytes > 0) {
    pieces.push_back({arena + own.amax_begin, region + whole.amax_begin, own.amax_bytes});
  }
}

// Places an owned extent at the ends of its owner's arena and landing area.
void PlaceExtent(const ParameterSpec& spec, int64_t& arena_end, int64_t& landing_end, OwnedExtent& extent) {
  const Encoding encoding = EncodingOf(spec.encoding);
  const int64_t rows = extent.rows.size();
  const auto append_plane = [&](Plane plane) {
    const int64_t bytes = PackPlane(encoding, plane, rows, spec.columns()).bytes;
    return std::exchange(arena_end, arena_end + AlignUp(bytes, kRegionAlignment));
  };
  extent.row_wise_offset = append_plane(Plane::kRowWise);
  if (HasColumnPlane(encoding.format)) extent.column_wise_offset = append_plane(Plane::kColumnWise);
  if (!spec.trainable) return;
  const int64_t gradient_bytes = rows * spec.columns() * GradientBytes(spec.gradient_type);
  extent.landing_offset = std::exchange(landing_end, landing_end + AlignUp(gradient_bytes, kRegionAlignment));
}

}  // namespace

Layout::Layout(ModelSpec spec, int ranks) : spec_(std::move(spec)), ranks_(ranks) {
  PARAMSHARD_CHECK(1 <= ranks && ranks <= kMaxShardSize);
  const RankLoads loads(spec_, ranks_);
  imbalance_ = loads.Imbalance();
  PlaceUnits(loads);
  PlaceGatherSlots();
  PlaceGradientSlots();
  PlaceLanding();
  PlaceOwned();
}

void Layout::PlaceUnits(const RankLoads& loads) {
  UnitPlacer placer(ranks_);
  absl::Span<const int> owners = loads.owners();
  absl::Span<const std::vector<OwnedRows>> owned = loads.owned_rows();
  for (const UnitSpec& unit : spec_.units) {
    const size_t parameters = unit.parameters.size();
    units_.push_back(placer.Place(unit, owners.first(parameters), owned.first(parameters)));
    units_.back().arena_offset = arena_bytes_;
    arena_bytes_ += units_.back().arena_bytes;
    owners.remove_prefix(parameters);
    owned.remove_prefix(parameters);
  }
}

// Follows what lies at the same place on all ranks.
void Layout::PlaceOwned() {
  std::vector<int64_t> arenas(ranks_, arena_bytes_), landings(ranks_, landing_bytes_);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit].parameters.size(); ++i) {
      for (OwnedExtent& extent : units_[unit].parameters[i].owned) {
        PlaceExtent(spec_.units[unit].parameters[i], arenas[extent.rank], landings[extent.rank], extent);
      }
    }
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    // Devices share no empty memory: the arena of a rank that owns nothing has room that nobody uses.
    owned_arena_bytes_.push_back(std::max(arenas[rank], kRegionAlignment) - arena_bytes_);
    owned_landing_bytes_.push_back(landings[rank] - landing_bytes_);
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
  slot_offsets_ = ranks_ == 1 ? std::vector<int64_t>(slot_bytes_.size(), 0) : AppendSlots(slot_bytes_);
}

void Layout::PlaceGradientSlots() {
  std::vector<int64_t> unit_bytes;
  for (const UnitLayout& unit : units_) {
    if (unit.gradient_bytes > 0) unit_bytes.push_back(unit.gradient_bytes);
  }
  gradient_slot_bytes_ = SlotSizes(unit_bytes, spec_.gradient_slots);
  gradient_slot_offsets_ = AppendSlots(gradient_slot_bytes_);
  slots_bytes_ = std::max(slots_bytes_, kSlotAlignment);
}

void Layout::PlaceLanding() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t i = 0; i < units_[unit].parameters.size(); ++i) {
      const ParameterSpec& spec = spec_.units[unit].parameters[i];
      ParameterLayout& parameter = units_[unit].parameters[i];
      if (!spec.trainable || !parameter.owned.empty()) continue;
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
  if (layout.owned.empty()) return CutRows(rows, layout.rows_per_rank, rank);
  const OwnedExtent* const extent = ExtentOf(layout, rank);
  return extent == nullptr ? RowRange{} : extent->rows;
}

ArenaPlace Layout::PlaceInArena(int unit, int parameter, Plane plane, int rank) const {
  const UnitLayout& in_unit = units_[unit];
  const ParameterLayout& layout = in_unit.parameters[parameter];
  if (!layout.owned.empty()) {
    const ParameterSpec& spec = Spec(unit, parameter);
    const OwnedExtent& extent = *ExtentOf(layout, rank);
    const PackedPlane packed = PackPlane(EncodingOf(spec.encoding), plane, extent.rows.size(), spec.columns());
    const int64_t begin = OffsetOf(extent, plane);
    return {.data = begin,
            .scales = packed.scale_bytes > 0 ? begin + packed.scales_begin : -1,
            .amax = packed.amax_bytes > 0 ? begin + packed.amax_begin : -1};
  }
  const PlaneLayout& in_plane = plane == Plane::kRowWise ? layout.row_wise : *layout.column_wise;
  const int64_t small = in_unit.arena_offset + in_unit.small_extent_offset;
  return {.data = layout.owner.has_value() ? small + in_plane.small_data_offset
                                           : in_unit.arena_offset + in_plane.arena_offset,
          .scales = in_plane.scale_offset < 0 ? -1 : small + in_plane.scale_offset,
          .amax = in_plane.amax_offset < 0 ? -1 : small + in_plane.amax_offset};
}

std::vector<PieceCopy> Layout::Pieces(int unit, Phase phase, int rank) const {
  const UnitLayout& layout = units_[unit];
  std::vector<PieceCopy> pieces;
  for (int i = 0; i < static_cast<int>(layout.parameters.size()); ++i) {
    const ParameterLayout& parameter = layout.parameters[i];
    if (parameter.owner.has_value()) continue;
    if (!parameter.owned.empty()) {
      AppendOwnedPieces(unit, i, phase, rank, pieces);
      continue;
    }
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

void Layout::AppendOwnedPieces(int unit, int parameter, Phase phase, int rank, std::vector<PieceCopy>& pieces) const {
  const ParameterSpec& spec = Spec(unit, parameter);
  const ParameterLayout& layout = units_[unit].parameters[parameter];
  const OwnedExtent* const extent = ExtentOf(layout, rank);
  if (extent == nullptr) return;
  for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
    if (Brings(EncodingOf(spec.encoding).format, plane, phase)) {
      const PlaneLayout& in_plane = plane == Plane::kRowWise ? layout.row_wise : *layout.column_wise;
      AppendPackedPieces(spec, plane, *extent, *in_plane.slot_offset[phase], pieces);
    }
  }
}

int64_t Layout::GatheredBytes(int unit, Phase phase) const {
  const UnitLayout& layout = units_[unit];
  int64_t bytes = ranks_ * layout.small[phase].bytes;
  for (int i = 0; i < static_cast<int>(layout.parameters.size()); ++i) {
    if (layout.parameters[i].owner.has_value()) continue;
    const ParameterSpec& spec = Spec(unit, i);
    const Encoding encoding = EncodingOf(spec.encoding);
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (!Brings(encoding.format, plane, phase)) continue;
      const PackedPlane whole = PackPlane(encoding, plane, spec.rows(), spec.columns());
      switch (layout.parameters[i].owned.size()) {
        case 0:  // scales and amax are in small runs
          bytes += whole.data_bytes;
          break;
        case 1:
          bytes += whole.bytes;
          break;
        default:
          bytes += whole.data_bytes + whole.scale_bytes + whole.amax_bytes;
      }
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
    const ParameterLayout& layout = units_[unit].parameters[i];
    const int64_t row_bytes = spec.columns() * GradientBytes(spec.gradient_type);
    slices.push_back(
        {.parameter = i,
         .slot_offset = layout.gradient_offset + rows.begin * row_bytes,
         .elements = rows.size() * spec.columns(),
         .landing_offset = layout.owned.empty() ? layout.landing_offset : ExtentOf(layout, rank)->landing_offset});
  }
  return slices;
}

std::vector<PieceCopy> Layout::LandingCopies(int unit, int rank, int gradient_slot,
                                             absl::Span<const int> absent_parameters) const {
  std::vector<PieceCopy> copies;
  for (const GradientSlice& slice : Slices(unit, rank)) {
    if (std::binary_search(absent_parameters.begin(), absent_parameters.end(), slice.parameter)) continue;
    copies.push_back({.source = gradient_slot_offsets_[gradient_slot] + slice.slot_offset,
                      .target = slots_bytes_ + slice.landing_offset,
                      .bytes = slice.elements * GradientBytes(Spec(unit, slice.parameter).gradient_type)});
  }
  return copies;
}

int64_t Layout::PlaneBytes(int unit, int parameter, int rank) const {
  const ParameterLayout& layout = units_[unit].parameters[parameter];
  const int64_t rows = Extent(unit, parameter, rank).size();
  // An empty extent of a parameter that is cut has the numbers of the whole tensor.
  const bool is_cut = !layout.owner.has_value() && layout.owned.empty();
  if (rows == 0 && !is_cut) return 0;
  const ParameterSpec& spec = Spec(unit, parameter);
  return AllPlaneBytes(EncodingOf(spec.encoding), rows, spec.columns());
}

}  // namespace paramshard
