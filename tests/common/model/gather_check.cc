#include "tests/common/model/gather_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "tests/common/model/reference_format.h"

namespace paramshard {

struct GatherCheck::PlaneCase {
  Plane plane;
  const ParameterSpec& spec;
  const ReferenceFormat& format;
  const UnitLayout& unit;
  const ParameterLayout& parameter;
  const PlaneLayout& layout;
  Tag first_data;
  Tag first_scale;
  Tag first_amax;

  int64_t row_bytes() const { return format.RowBytes(spec.columns()); }
  int64_t scale_row_bytes() const { return format.ScaleRowBytes(plane, spec.columns()); }
  int64_t scale_bytes(int64_t begin, int64_t end) const {
    return format.ScaleRows(plane, begin, end) * scale_row_bytes();
  }
  bool small() const { return parameter.owner.has_value(); }
  bool owned() const { return !parameter.owned.empty(); }
  // In a packed plane of so many rows.
  int64_t packed_scales(int64_t rows) const { return (rows * row_bytes() + 15) / 16 * 16; }
  int64_t packed_amax(int64_t rows) const { return (packed_scales(rows) + scale_bytes(0, rows) + 3) / 4 * 4; }

  // The rule of the design: forward reads rows; backward reads columns where there are such planes,
  // else rows.
  bool ReadBy(Phase phase) const {
    if (plane == Plane::kColumnWise) return phase != Phase::kForward;
    return phase != Phase::kBackward || !format.has_column_plane;
  }

  std::string Name() const {
    return absl::StrCat("parameter ", spec.name, " ", FormatName(format.format), " plane ", static_cast<int>(plane));
  }
};

namespace {

// Returns the array of a tag, in the bits above the byte's index.
enum class Array : uint64_t { kData = 1, kScales = 2, kAmax = 3 };

Tag FirstTag(int unit, int parameter, Plane plane, Array array) {
  const auto bits = [](auto value, int shift) { return static_cast<uint64_t>(value) << shift; };
  return bits(unit, 56) | bits(parameter, 48) | bits(plane, 44) | bits(array, 40);
}

// Stores the tags of a part of an array, reporting bytes that are taken.
void Store(std::vector<Tag>& memory, int64_t offset, Tag first, int64_t bytes) {
  ASSERT_GE(offset, 0);
  ASSERT_LE(offset + bytes, static_cast<int64_t>(memory.size()));
  for (int64_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(memory[offset + i], 0u) << "byte " << offset + i << " is taken";
    memory[offset + i] = first + i;
  }
}

void Expect(const std::vector<Tag>& memory, int64_t offset, Tag first, int64_t bytes) {
  ASSERT_GE(offset, 0);
  ASSERT_LE(offset + bytes, static_cast<int64_t>(memory.size()));
  for (int64_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(memory[offset + i], first + i) << "byte " << i << " at " << offset + i;
  }
}

int64_t SmallExtentBegin(const UnitLayout& unit) { return unit.arena_offset + unit.small_extent_offset; }

// Returns where a rank's part of the small extent of a phase would begin if it had all of Phase::kBoth:
// the origin of offsets.
int64_t SmallBase(const UnitLayout& unit, Phase phase, int rank) {
  const SmallRun& small = unit.small[phase];
  return small.slot_offset + rank * small.bytes - small.begin;
}

int64_t GradientElementBytes(const ParameterSpec& spec) { return spec.gradient_type == GradientType::kBF16 ? 2 : 4; }

}  // namespace

GatherCheck::GatherCheck(const ModelSpec& spec, const Layout& layout)
    : spec_(spec), layout_(layout), arenas_(layout.ranks()) {
  for (int rank = 0; rank < layout.ranks(); ++rank) arenas_[rank].resize(layout.arena_bytes(rank), 0);
  FillArenas();
}

std::vector<GatherCheck::PlaneCase> GatherCheck::Planes(int unit, int parameter) const {
  const ParameterSpec& spec = Spec(unit, parameter);
  const ReferenceFormat& format = ReferenceOf(*spec.encoding.format);
  const ParameterLayout& layout = layout_.units()[unit].parameters[parameter];
  EXPECT_EQ(layout.column_wise.has_value(), format.has_column_plane);
  std::vector<PlaneCase> planes;
  const auto add = [&](Plane plane, const PlaneLayout& plane_layout) {
    planes.push_back({plane, spec, format, layout_.units()[unit], layout, plane_layout,
                      FirstTag(unit, parameter, plane, Array::kData), FirstTag(unit, parameter, plane, Array::kScales),
                      FirstTag(unit, parameter, plane, Array::kAmax)});
  };
  add(Plane::kRowWise, layout.row_wise);
  if (format.has_column_plane) {
    add(Plane::kColumnWise, layout.column_wise.value());
  }
  return planes;
}

std::vector<GatherCheck::PlaneCase> GatherCheck::PlanesOfUnit(int unit) const {
  std::vector<PlaneCase> planes;
  for (int parameter = 0; parameter < ParameterCount(unit); ++parameter) {
    for (const PlaneCase& plane : Planes(unit, parameter)) planes.push_back(plane);
  }
  return planes;
}

std::vector<int> GatherCheck::RowOwners(int unit, int parameter) const {
  const ParameterSpec& spec = Spec(unit, parameter);
  const std::optional<int> owner = layout_.units()[unit].parameters[parameter].owner;
  if (owner.has_value()) return std::vector<int>(spec.rows(), *owner);
  if (spec.placement == Placement::kOwned) return MatrixOwners(unit, parameter);
  return ChunkOwners(spec.rows(), ReferenceOf(*spec.encoding.format).granule, layout_.ranks());
}

std::vector<int> GatherCheck::MatrixOwners(int unit, int parameter) const {
  const ParameterSpec& spec = Spec(unit, parameter);
  const int64_t granule = ReferenceOf(*spec.encoding.format).granule;
  const int64_t matrix_rows = spec.shape.size() > 2 ? spec.shape[spec.shape.size() - 2] : spec.rows();
  std::vector<int> owners;
  for (const OwnedExtent& extent : layout_.units()[unit].parameters[parameter].owned) {
    EXPECT_EQ(extent.rows.begin, static_cast<int64_t>(owners.size()));
    EXPECT_GT(extent.rows.size(), 0);
    EXPECT_EQ(extent.rows.begin % matrix_rows, 0) << "a matrix has two owners";
    EXPECT_EQ(extent.rows.begin % granule, 0) << "a block has two owners";
    EXPECT_TRUE(owners.empty() || extent.rank > owners.back());
    owners.insert(owners.end(), extent.rows.size(), extent.rank);
  }
  EXPECT_EQ(static_cast<int64_t>(owners.size()), spec.rows());
  return owners;
}

void GatherCheck::FillArenas() {
  for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
    for (const PlaneCase& plane : PlanesOfUnit(unit)) {
      for (int rank = 0; rank < layout_.ranks(); ++rank) FillPlane(plane, rank);
    }
  }
}

void GatherCheck::FillPlane(const PlaneCase& plane, int rank) {
  if (plane.parameter.owner.has_value() && *plane.parameter.owner != rank) return;
  if (plane.owned()) return FillOwnedPlane(plane, rank);
  const int unit = static_cast<int>(&plane.unit - layout_.units().data());
  const int parameter = static_cast<int>(&plane.parameter - plane.unit.parameters.data());
  const RowRange rows = layout_.Extent(unit, parameter, rank);
  const int64_t small = plane.unit.arena_offset + plane.unit.small_extent_offset;
  const int64_t data = plane.parameter.owner ? small + plane.layout.small_data_offset
                                             : plane.unit.arena_offset + plane.layout.arena_offset;
  Store(arenas_[rank], data, plane.first_data + rows.begin * plane.row_bytes(), rows.size() * plane.row_bytes());
  EXPECT_EQ(plane.layout.scale_offset >= 0, plane.scale_row_bytes() > 0);
  if (plane.scale_row_bytes() == 0) return;
  const int64_t before = plane.format.FirstScaleRow(plane.plane, rows.begin) * plane.scale_row_bytes();
  Store(arenas_[rank], small + plane.layout.scale_offset, plane.first_scale + before,
        plane.scale_bytes(rows.begin, rows.end));
  EXPECT_EQ(plane.layout.amax_offset >= 0, plane.format.amax_bytes > 0);
  if (plane.format.amax_bytes == 0) return;
  Store(arenas_[rank], small + plane.layout.amax_offset, plane.first_amax, plane.format.amax_bytes);
}

void GatherCheck::FillOwnedPlane(const PlaneCase& plane, int rank) {
  for (const OwnedExtent& extent : plane.parameter.owned) {
    if (extent.rank != rank) continue;
    const int64_t begin = plane.plane == Plane::kRowWise ? extent.row_wise_offset : extent.column_wise_offset;
    const int64_t rows = extent.rows.size();
    EXPECT_EQ(begin % 256, 0);
    Store(arenas_[rank], begin, plane.first_data + extent.rows.begin * plane.row_bytes(), rows * plane.row_bytes());
    if (plane.scale_row_bytes() == 0) continue;
    const int64_t before = plane.format.FirstScaleRow(plane.plane, extent.rows.begin) * plane.scale_row_bytes();
    Store(arenas_[rank], begin + plane.packed_scales(rows), plane.first_scale + before, plane.scale_bytes(0, rows));
    Store(arenas_[rank], begin + plane.packed_amax(rows), plane.first_amax, plane.format.amax_bytes);
  }
}

void GatherCheck::CheckArenas() const {
  for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
    for (int parameter = 0; parameter < ParameterCount(unit); ++parameter) {
      CheckExtents(unit, parameter);
    }
  }
}

void GatherCheck::CheckExtents(int unit, int parameter) const {
  const ParameterSpec& spec = Spec(unit, parameter);
  SCOPED_TRACE(absl::StrCat("parameter ", spec.name));
  const int64_t whole = ReferenceOf(*spec.encoding.format).AllBytes(spec.rows(), spec.columns());
  const ParameterLayout& layout = layout_.units()[unit].parameters[parameter];
  const bool is_small = whole < spec_.small_parameter_bytes;
  EXPECT_EQ(layout.owner.has_value(), is_small);
  EXPECT_EQ(!layout.owned.empty(), spec.placement == Placement::kOwned && !is_small);
  std::vector<int> owners;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    const RowRange rows = layout_.Extent(unit, parameter, rank);
    ASSERT_GE(rows.size(), 0);
    if (rows.size() > 0) {
      ASSERT_EQ(rows.begin, static_cast<int64_t>(owners.size()));
    }
    owners.insert(owners.end(), rows.size(), rank);
    EXPECT_EQ(layout_.PlaneBytes(unit, parameter, rank), ExpectedPlaneBytes(unit, parameter, rows.size()));
  }
  EXPECT_EQ(owners, RowOwners(unit, parameter));
}

int64_t GatherCheck::ExpectedPlaneBytes(int unit, int parameter, int64_t rows) const {
  const ParameterLayout& layout = layout_.units()[unit].parameters[parameter];
  if (rows == 0 && (layout.owner.has_value() || !layout.owned.empty())) return 0;
  return ReferenceOf(*Spec(unit, parameter).encoding.format).AllBytes(rows, Spec(unit, parameter).columns());
}

GatherCheck::Memory GatherCheck::Gather(int unit, Phase phase) const {
  Memory slot(layout_.units()[unit].slot_bytes[phase], 0);
  std::vector<bool> taken(slot.size(), false);
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    int64_t end = 0;
    for (const PieceCopy& piece : layout_.Pieces(unit, phase, rank)) {
      EXPECT_GT(piece.bytes, 0);
      EXPECT_GE(piece.target, end) << "not in slot order";
      end = piece.target + piece.bytes;
      for (int64_t i = 0; i < piece.bytes; ++i) {
        EXPECT_FALSE(taken.at(piece.target + i)) << "byte " << piece.target + i;
        taken[piece.target + i] = true;
        slot[piece.target + i] = arenas_[rank].at(piece.source + i);
      }
    }
  }
  return slot;
}

void GatherCheck::CheckGather(int unit, Phase phase) const {
  SCOPED_TRACE(absl::StrCat("unit ", unit, " phase ", PhaseName(phase)));
  const Memory slot = Gather(unit, phase);
  for (const PlaneCase& plane : PlanesOfUnit(unit)) {
    SCOPED_TRACE(plane.Name());
    CheckOffsets(plane, phase);
    if (!plane.ReadBy(phase)) continue;
    ExpectPlane(slot, plane, phase);
    if (plane.scale_row_bytes() > 0) ExpectScales(slot, plane, phase);
    if (plane.format.amax_bytes > 0) ExpectAmax(slot, plane, phase);
  }
}

void GatherCheck::CheckOffsets(const PlaneCase& plane, Phase phase) {
  EXPECT_EQ(plane.layout.slot_offset[phase].has_value(), !plane.small() && plane.ReadBy(phase));
  EXPECT_EQ(plane.layout.small_data_offset >= 0, plane.small());
  EXPECT_EQ(plane.layout.scale_offset >= 0, !plane.owned() && plane.scale_row_bytes() > 0);
  EXPECT_EQ(plane.layout.amax_offset >= 0, !plane.owned() && plane.format.amax_bytes > 0);
  EXPECT_TRUE(plane.layout.amax_offset == -1 || plane.layout.amax_offset % 4 == 0) << plane.layout.amax_offset;
  const SmallRun& small = plane.unit.small[phase];
  EXPECT_TRUE(plane.small() || plane.owned() || plane.layout.arena_offset % 256 == 0) << plane.layout.arena_offset;
  for (const int64_t offset : {plane.unit.arena_offset, plane.layout.slot_offset[phase].value_or(0),
                               SmallExtentBegin(plane.unit) + small.begin, small.slot_offset, small.bytes}) {
    EXPECT_EQ(offset % 256, 0) << offset;
  }
  for (const int64_t offset : {plane.layout.small_data_offset, plane.layout.scale_offset}) {
    EXPECT_TRUE(offset == -1 || offset % 16 == 0) << offset;
  }
}

void GatherCheck::ExpectPlane(const Memory& slot, const PlaneCase& plane, Phase phase) const {
  const int64_t offset = plane.small()
                             ? SmallBase(plane.unit, phase, *plane.parameter.owner) + plane.layout.small_data_offset
                             : *plane.layout.slot_offset[phase];
  Expect(slot, offset, plane.first_data, plane.spec.rows() * plane.row_bytes());
}

void GatherCheck::ExpectScales(const Memory& slot, const PlaneCase& plane, Phase phase) const {
  const int64_t rows = plane.spec.rows();
  if (plane.owned()) {
    const int64_t begin = *plane.layout.slot_offset[phase] + plane.packed_scales(rows);
    return Expect(slot, begin, plane.first_scale, plane.scale_bytes(0, rows));
  }
  int64_t collected = 0;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (plane.small() && *plane.parameter.owner != rank) continue;
    const int64_t per_rank = plane.parameter.rows_per_rank;
    const int64_t begin = plane.small() ? 0 : std::min(rank * per_rank, rows);
    const int64_t bytes = plane.scale_bytes(begin, plane.small() ? rows : std::min((rank + 1) * per_rank, rows));
    Expect(slot, SmallBase(plane.unit, phase, rank) + plane.layout.scale_offset,
           plane.first_scale + (plane.format.OneScale() ? 0 : collected), bytes);
    collected += bytes;
  }
  if (!plane.format.OneScale()) {
    EXPECT_EQ(collected, plane.scale_bytes(0, rows));
  }
}

void GatherCheck::ExpectAmax(const Memory& slot, const PlaneCase& plane, Phase phase) const {
  if (plane.owned()) {
    const int64_t begin = *plane.layout.slot_offset[phase] + plane.packed_amax(plane.spec.rows());
    return Expect(slot, begin, plane.first_amax, plane.format.amax_bytes);
  }
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (plane.small() && *plane.parameter.owner != rank) continue;
    Expect(slot, SmallBase(plane.unit, phase, rank) + plane.layout.amax_offset, plane.first_amax,
           plane.format.amax_bytes);
  }
}

void GatherCheck::CheckArenaAsView(int unit) const {
  ASSERT_EQ(layout_.ranks(), 1);
  for (const PlaneCase& plane : PlanesOfUnit(unit)) {
    SCOPED_TRACE(plane.Name());
    const int parameter = static_cast<int>(&plane.parameter - plane.unit.parameters.data());
    const ArenaPlace place = layout_.PlaceInArena(unit, parameter, plane.plane, 0);
    Expect(arenas_[0], place.data, plane.first_data, plane.spec.rows() * plane.row_bytes());
    EXPECT_EQ(place.scales >= 0, plane.scale_row_bytes() > 0);
    EXPECT_EQ(place.amax >= 0, plane.format.amax_bytes > 0);
    if (place.scales >= 0) Expect(arenas_[0], place.scales, plane.first_scale, plane.scale_bytes(0, plane.spec.rows()));
    if (place.amax >= 0) Expect(arenas_[0], place.amax, plane.first_amax, plane.format.amax_bytes);
  }
}

std::vector<int> GatherCheck::GradientSenders(int unit) const {
  std::vector<int> senders(layout_.units()[unit].gradient_bytes, -1);
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    int last_parameter = -1;
    for (const GradientSlice& slice : layout_.Slices(unit, rank)) {
      EXPECT_GT(slice.parameter, std::exchange(last_parameter, slice.parameter)) << "not in parameter order";
      EXPECT_GT(slice.elements, 0);
      const int64_t bytes = slice.elements * GradientElementBytes(Spec(unit, slice.parameter));
      for (int64_t i = slice.slot_offset; i < slice.slot_offset + bytes; ++i) {
        EXPECT_EQ(std::exchange(senders.at(i), rank), -1) << "byte " << i << " is sent twice";
      }
    }
  }
  return senders;
}

void GatherCheck::CheckGradients(int unit) const {
  SCOPED_TRACE(absl::StrCat("gradients of unit ", unit));
  std::vector<int> senders = GradientSenders(unit);
  for (int parameter = 0; parameter < ParameterCount(unit); ++parameter) {
    const ParameterSpec& spec = Spec(unit, parameter);
    if (!spec.trainable) continue;
    const int64_t offset = layout_.units()[unit].parameters[parameter].gradient_offset;
    EXPECT_EQ(offset % 256, 0);
    const std::vector<int> owners = RowOwners(unit, parameter);
    const int64_t row_bytes = spec.columns() * GradientElementBytes(spec);
    for (int64_t i = 0; i < spec.rows() * row_bytes; ++i) {
      ASSERT_EQ(std::exchange(senders.at(offset + i), -1), owners[i / row_bytes]) << "byte " << i;
    }
  }
  EXPECT_EQ(std::count(senders.begin(), senders.end(), -1), static_cast<int64_t>(senders.size()))
      << "slices outside of gradients";
}

}  // namespace paramshard
