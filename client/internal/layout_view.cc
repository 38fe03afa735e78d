#include "client/internal/layout_view.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/internal/spec_proto.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

constexpr Plane kPlanes[] = {Plane::kRowWise, Plane::kColumnWise};

const v1::SmallExtentLayout& SmallExtent(const v1::UnitLayout& unit, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return unit.forward();
    case Phase::kBackward:
      return unit.backward();
    case Phase::kBoth:
      break;
  }
  return unit.both();
}

const v1::PlaneLayout& PlaneOf(const v1::ParameterLayout& parameter, Plane plane) {
  return plane == Plane::kRowWise ? parameter.row_wise() : parameter.column_wise();
}

// The region of all extents of a plane lies here in a slot.
int64_t RegionOffset(const v1::PlaneLayout& plane, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return plane.forward_offset();
    case Phase::kBackward:
      return plane.backward_offset();
    case Phase::kBoth:
      break;
  }
  return plane.both_offset();
}

// One scale for the tensor: every rank has the same.
bool HasTensorScale(Format format) {
  return format == Format::kFP8TensorCurrent || format == Format::kFP8TensorDelayed;
}

// Parts that lie one after the other are one: nobody needs to put them together.
void AppendPart(std::vector<ByteRange>& parts, const ByteRange& next) {
  if (!parts.empty() && parts.back().offset + parts.back().bytes == next.offset) {
    parts.back().bytes += next.bytes;
  } else {
    parts.push_back(next);
  }
}

}  // namespace

LayoutView::LayoutView(v1::ModelLayout layout, const ModelSpec* spec, int group_rank)
    : layout_(std::move(layout)), spec_(spec), group_rank_(group_rank) {
  for (const UnitSpec& unit : spec_->units) {
    std::vector<Encoding>& encodings = encodings_.emplace_back();
    for (const ParameterSpec& parameter : unit.parameters) encodings.push_back(ToEncoding(parameter.encoding));
  }
}

absl::StatusOr<LayoutView> LayoutView::Create(v1::ModelLayout layout, const ModelSpec* spec, int group_rank) {
  LayoutView view(std::move(layout), spec, group_rank);
  RETURN_IF_ERROR(view.Check());
  view.IndexNames();
  return view;
}

absl::Status LayoutView::Check() const {
  if (layout_.units_size() != static_cast<int>(spec_->units.size())) {
    return absl::InternalError(
        absl::StrCat("layout: ", spec_->units.size(), " units expected, got ", layout_.units_size()));
  }
  for (int unit = 0; unit < layout_.units_size(); ++unit) {
    const int expected = static_cast<int>(spec_->units[unit].parameters.size());
    if (layout_.units(unit).parameters_size() == expected) continue;
    return absl::InternalError(absl::StrCat("layout ", UnitName(unit), ": ", expected, " parameters expected, got ",
                                            layout_.units(unit).parameters_size()));
  }
  if (group_rank_ < 0 || group_rank_ >= layout_.ranks()) {
    return absl::InternalError(absl::StrCat("layout: a rank below ", layout_.ranks(), " expected, got ", group_rank_));
  }
  return absl::OkStatus();
}

void LayoutView::IndexNames() {
  for (int unit = 0; unit < layout_.units_size(); ++unit) {
    units_.emplace(UnitName(unit), unit);
    const std::vector<ParameterSpec>& parameters = spec_->units[unit].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) parameters_.emplace(parameters[i].name, std::make_pair(unit, i));
  }
}

std::string LayoutView::UnitNames(const std::vector<int>& units) const {
  return absl::StrJoin(units, ", ", [this](std::string* out, int unit) { out->append(UnitName(unit)); });
}

int LayoutView::RingSlots() const {
  const auto is_resident = [](const v1::UnitLayout& unit) { return unit.has_resident_slot(); };
  return layout_.slot_offsets_size() - std::count_if(layout_.units().begin(), layout_.units().end(), is_resident);
}

std::optional<int> LayoutView::ResidentSlot(int unit) const {
  if (!layout_.units(unit).has_resident_slot()) return std::nullopt;
  return layout_.units(unit).resident_slot();
}

absl::StatusOr<int> LayoutView::FindUnit(absl::string_view name) const {
  const auto found = units_.find(name);
  if (found != units_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("unit ", name, ": a unit of model ", spec_->name, " expected"));
}

absl::StatusOr<int> LayoutView::FindParameter(int unit, absl::string_view name) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) {
    return absl::NotFoundError(absl::StrCat("parameter ", name, ": a parameter of unit ", UnitName(unit), " expected"));
  }
  const auto [owner, index] = found->second;
  if (owner == unit) return index;
  return absl::NotFoundError(absl::StrCat("parameter ", name, ": a parameter of unit ", UnitName(unit),
                                          " expected, got one of unit ", UnitName(owner)));
}

Plane LayoutView::MainPlane(int unit, int parameter, Phase phase) const {
  const bool columns = phase == Phase::kBackward && HasColumnPlane(EncodingOf(unit, parameter).format);
  return columns ? Plane::kColumnWise : Plane::kRowWise;
}

bool LayoutView::Brings(int unit, int parameter, Plane plane, Phase phase) const {
  if (phase != Phase::kBoth) return plane == MainPlane(unit, parameter, phase);
  return plane == Plane::kRowWise || HasColumnPlane(EncodingOf(unit, parameter).format);
}

int64_t LayoutView::SlotBytes(int unit, Phase phase) const {
  const v1::UnitLayout& layout = layout_.units(unit);
  switch (phase) {
    case Phase::kForward:
      return layout.forward_bytes();
    case Phase::kBackward:
      return layout.backward_bytes();
    case Phase::kBoth:
      break;
  }
  return layout.both_bytes();
}

int64_t LayoutView::GatheredBytes(int unit, Phase phase) const {
  int64_t bytes = ranks() * SmallExtent(layout_.units(unit), phase).stride();
  for (int parameter = 0; parameter < layout_.units(unit).parameters_size(); ++parameter) {
    if (Parameter(unit, parameter).has_owner()) continue;
    for (Plane plane : kPlanes) {
      if (Brings(unit, parameter, plane, phase)) bytes += WholeData(unit, parameter, 0).bytes;
    }
  }
  return bytes;
}

int64_t LayoutView::ExtentRows(const v1::ParameterLayout& parameter, int rank) const {
  if (parameter.has_owner()) return parameter.owner() == rank ? parameter.rows() : 0;
  const int64_t begin = std::min(rank * parameter.rows_per_rank(), parameter.rows());
  return std::min(begin + parameter.rows_per_rank(), parameter.rows()) - begin;
}

void LayoutView::AppendDataPieces(int unit, int parameter, Phase phase, std::vector<PieceCopy>& pieces) const {
  const v1::ParameterLayout& layout = Parameter(unit, parameter);
  const int64_t bytes = DataBytes(EncodingOf(unit, parameter), ExtentRows(layout, group_rank_), layout.columns());
  if (layout.has_owner() || bytes == 0) return;
  for (Plane plane : kPlanes) {
    if (!Brings(unit, parameter, plane, phase)) continue;
    const v1::PlaneLayout& place = PlaneOf(layout, plane);
    pieces.push_back({.source = place.arena_offset(),
                      .target = RegionOffset(place, phase) + group_rank_ * place.data_stride(),
                      .bytes = bytes});
  }
}

std::vector<PieceCopy> LayoutView::OwnPieces(int unit, Phase phase) const {
  std::vector<PieceCopy> pieces;
  for (int parameter = 0; parameter < layout_.units(unit).parameters_size(); ++parameter) {
    AppendDataPieces(unit, parameter, phase, pieces);
  }
  const v1::SmallExtentLayout& small = SmallExtent(layout_.units(unit), phase);
  if (small.stride() > 0) {
    pieces.push_back({.source = small.arena_offset(),
                      .target = small.slot_offset() + group_rank_ * small.stride(),
                      .bytes = small.stride()});
  }
  return pieces;
}

std::vector<PieceCopy> LayoutView::OwnGradients(int unit, int gradient_slot,
                                                absl::Span<const int> absent_parameters) const {
  std::vector<PieceCopy> pieces;
  for (int i = 0; i < layout_.units(unit).parameters_size(); ++i) {
    const v1::ParameterLayout& layout = Parameter(unit, i);
    const int64_t row_bytes = layout.columns() * GradientBytes(spec_->units[unit].parameters[i].gradient_type);
    const int64_t rows = ExtentRows(layout, group_rank_);
    if (rows == 0 || std::binary_search(absent_parameters.begin(), absent_parameters.end(), i)) continue;
    const int64_t first_row = layout.has_owner() ? 0 : group_rank_ * layout.rows_per_rank();
    pieces.push_back(
        {.source = layout_.gradient_slot_offsets(gradient_slot) + layout.gradient_offset() + first_row * row_bytes,
         .target = layout.landing_offset(),
         .bytes = rows * row_bytes});
  }
  return pieces;
}

ByteRange LayoutView::WholeData(int unit, int parameter, int64_t offset) const {
  return {offset, DataBytes(EncodingOf(unit, parameter), Rows(unit, parameter), Columns(unit, parameter))};
}

PlanePlace LayoutView::InSlot(int unit, int parameter, Plane plane, Phase phase) const {
  const v1::ParameterLayout& layout = Parameter(unit, parameter);
  const v1::PlaneLayout& place = PlaneOf(layout, plane);
  const v1::SmallExtentLayout& small = SmallExtent(layout_.units(unit), phase);
  // Offsets are those of the use "both", of whose small extent another use brings a part.
  const int64_t skipped = small.arena_offset() - layout_.units(unit).both().arena_offset();
  const auto small_offset = [&](int rank, int64_t offset) {
    return small.slot_offset() + rank * small.stride() + offset - skipped;
  };
  PlanePlace result;
  result.data = WholeData(
      unit, parameter,
      layout.has_owner() ? small_offset(layout.owner(), place.small_data_offset()) : RegionOffset(place, phase));
  const Format format = EncodingOf(unit, parameter).format;
  const int number_rank = NumberRank(layout);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (HasTensorScale(format) && rank != number_rank) continue;
    const int64_t bytes = ScaleBytes(EncodingOf(unit, parameter), plane, ExtentRows(layout, rank), layout.columns());
    if (bytes > 0) AppendPart(result.scales, {small_offset(rank, place.scale_offset()), bytes});
  }
  result.amax = {small_offset(number_rank, place.amax_offset()), AmaxBytes(format)};
  return result;
}

PlanePlace LayoutView::InArena(int unit, int parameter, Plane plane) const {
  const v1::ParameterLayout& layout = Parameter(unit, parameter);
  const v1::PlaneLayout& place = PlaneOf(layout, plane);
  const int64_t small = layout_.units(unit).both().arena_offset();
  PlanePlace result;
  result.data =
      WholeData(unit, parameter, layout.has_owner() ? small + place.small_data_offset() : place.arena_offset());
  const int64_t bytes = ScaleBytes(EncodingOf(unit, parameter), plane, layout.rows(), layout.columns());
  if (bytes > 0) result.scales.push_back({small + place.scale_offset(), bytes});
  result.amax = {small + place.amax_offset(), AmaxBytes(EncodingOf(unit, parameter).format)};
  return result;
}

}  // namespace paramshard::internal
