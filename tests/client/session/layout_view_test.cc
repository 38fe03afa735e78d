#include "client/internal/layout_view.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "client/internal/spec_proto.h"
#include "gmock/gmock.h"
#include "server/layout/layout.h"
#include "server/layout/model_spec.h"
#include "tests/every_format.h"
#include "tests/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;

constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackward, Phase::kBoth};
constexpr Plane kPlanes[] = {Plane::kRowWise, Plane::kColumnWise};

// Large parameters whose rows divide badly, small ones, and formats side by side.
ModelSpec MakeSpec(Format format) {
  ModelSpec spec;
  spec.name = "mixed";
  spec.small_parameter_bytes = 2000;
  UnitSpec first;
  first.name = "first";
  first.parameters = {{.name = "first.w", .shape = {300, 70}, .encoding = {.format = format}},
                      {.name = "first.norm", .shape = {70}},
                      {.name = "first.small", .shape = {5, 33}, .encoding = {.format = format}},
                      {.name = "first.v", .shape = {3, 50, 40}, .encoding = {.format = Format::kBF16}}};
  UnitSpec second;
  second.name = "second";
  second.parameters = {{.name = "second.w", .shape = {64, 128}, .encoding = {.format = format}},
                       {.name = "second.scalar", .shape = {}}};
  second.reshard_after_forward = false;
  spec.units = {first, second};
  return spec;
}

// What the client gets to see of a spec.
ModelSpec Resolve(const ModelSpec& spec) {
  return FromProto(server::ModelSpecToProto(server::ParseModelSpec(ToProto(spec)).value()));
}

struct EncodedPlane {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> amax;
};

std::vector<uint8_t> AnyBytes(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Bytes that differ from those of every other plane. Where they lie does not depend on what they mean.
EncodedPlane AnyPlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t columns, uint64_t seed) {
  return {AnyBytes(DataBytes(encoding, rows, columns), 3 * seed),
          AnyBytes(ScaleBytes(encoding, plane, rows, columns), 3 * seed + 1),
          AnyBytes(AmaxBytes(encoding.format), 3 * seed + 2)};
}

bool HasTensorScale(Format format) {
  return format == Format::kFP8TensorCurrent || format == Format::kFP8TensorDelayed;
}

std::vector<uint8_t> Cut(const std::vector<uint8_t>& bytes, int64_t begin, int64_t end) {
  return {bytes.begin() + begin, bytes.begin() + end};
}

// What an extent has of a plane: its rows, and every number of the tensor.
EncodedPlane ExtentOf(const EncodedPlane& whole, const Encoding& encoding, Plane plane, server::RowRange rows,
                      int64_t columns) {
  EncodedPlane extent = {
      Cut(whole.data, DataBytes(encoding, rows.begin, columns), DataBytes(encoding, rows.end, columns)), whole.scales,
      whole.amax};
  if (HasTensorScale(encoding.format)) return extent;
  extent.scales = Cut(whole.scales, ScaleBytes(encoding, plane, rows.begin, columns),
                      ScaleBytes(encoding, plane, rows.end, columns));
  return extent;
}

// A model whose planes lie in arenas as the server puts them.
class LayoutViewTest : public testing::TestWithParam<std::tuple<Format, int>> {
 protected:
  LayoutViewTest() : spec_(Resolve(MakeSpec(std::get<0>(GetParam())))), ranks_(std::get<1>(GetParam())) {}

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const server::ModelSpec parsed, server::ParseModelSpec(ToProto(spec_)));
    server_layout_.emplace(parsed, ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      ASSERT_OK_AND_ASSIGN(LayoutView view, LayoutView::Create(server_layout_->ToProto(), &spec_, rank));
      views_.push_back(std::move(view));
      arenas_.emplace_back(server_layout_->arena_bytes());
    }
    for (int unit = 0; unit < static_cast<int>(spec_.units.size()); ++unit) {
      for (int i = 0; i < static_cast<int>(spec_.units[unit].parameters.size()); ++i) FillArenas(unit, i);
    }
  }

  Encoding EncodingOf(int unit, int parameter) const {
    return ToEncoding(spec_.units[unit].parameters[parameter].encoding);
  }

  EncodedPlane Expected(int unit, int parameter, Plane plane) const {
    return AnyPlane(EncodingOf(unit, parameter), plane, views_[0].Rows(unit, parameter),
                    views_[0].Columns(unit, parameter), 100 * unit + 10 * parameter + static_cast<int>(plane));
  }

  void FillArenas(int unit, int parameter) {
    const server::UnitLayout& unit_layout = server_layout_->units()[unit];
    const server::ParameterLayout& layout = unit_layout.parameters[parameter];
    for (int rank = 0; rank < ranks_; ++rank) {
      if (layout.owner.has_value() && *layout.owner != rank) continue;
      const server::RowRange rows = server_layout_->Extent(unit, parameter, rank);
      const auto place = [&](Plane plane, const server::PlaneLayout& where) {
        Place(unit_layout, where,
              ExtentOf(Expected(unit, parameter, plane), EncodingOf(unit, parameter), plane, rows,
                       views_[0].Columns(unit, parameter)),
              rank);
      };
      place(Plane::kRowWise, layout.row_wise);
      if (layout.column_wise.has_value()) place(Plane::kColumnWise, *layout.column_wise);
    }
  }

  void Place(const server::UnitLayout& unit, const server::PlaneLayout& place, const EncodedPlane& plane, int rank) {
    uint8_t* arena = arenas_[rank].data() + unit.arena_offset;
    uint8_t* small = arena + unit.small_extent_offset;
    const bool is_small = place.small_data_offset >= 0;
    std::copy(plane.data.begin(), plane.data.end(),
              is_small ? small + place.small_data_offset : arena + place.arena_offset);
    std::copy(plane.scales.begin(), plane.scales.end(), small + std::max<int64_t>(place.scale_offset, 0));
    std::copy(plane.amax.begin(), plane.amax.end(), small + std::max<int64_t>(place.amax_offset, 0));
  }

  static EncodedPlane Read(const uint8_t* memory, const PlanePlace& place) {
    EncodedPlane plane;
    plane.data.assign(memory + place.data.offset, memory + place.data.offset + place.data.bytes);
    for (const ByteRange& range : place.scales) {
      plane.scales.insert(plane.scales.end(), memory + range.offset, memory + range.offset + range.bytes);
    }
    plane.amax.assign(memory + place.amax.offset, memory + place.amax.offset + place.amax.bytes);
    return plane;
  }

  const ModelSpec spec_;
  const int ranks_;
  std::optional<server::Layout> server_layout_;
  std::vector<LayoutView> views_;
  std::vector<std::vector<uint8_t>> arenas_;
};

TEST_P(LayoutViewTest, EveryRanksPiecesTogetherAreTheWholeMatrix) {
  for (int unit = 0; unit < 2; ++unit) {
    for (Phase phase : kPhases) {
      std::vector<uint8_t> slot(views_[0].SlotBytes(unit, phase));
      int64_t bytes = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        for (const PieceCopy& piece : views_[rank].OwnPieces(unit, phase)) {
          ASSERT_LE(piece.source + piece.bytes, static_cast<int64_t>(arenas_[rank].size()));
          ASSERT_LE(piece.target + piece.bytes, static_cast<int64_t>(slot.size()));
          std::memcpy(slot.data() + piece.target, arenas_[rank].data() + piece.source, piece.bytes);
          bytes += piece.bytes;
        }
      }
      for (int i = 0; i < static_cast<int>(spec_.units[unit].parameters.size()); ++i) {
        for (Plane plane : kPlanes) {
          if (!views_[0].Brings(unit, i, plane, phase)) continue;
          const EncodedPlane got = Read(slot.data(), views_[0].InSlot(unit, i, plane, phase));
          EXPECT_EQ(got.data, Expected(unit, i, plane).data) << unit << " " << i;
          EXPECT_EQ(got.scales, Expected(unit, i, plane).scales) << unit << " " << i;
          EXPECT_EQ(got.amax, Expected(unit, i, plane).amax) << unit << " " << i;
        }
      }
      EXPECT_EQ(views_[0].GatheredBytes(unit, phase), bytes);
    }
  }
}

TEST_P(LayoutViewTest, AGroupOfOneReadsItsArena) {
  if (ranks_ != 1) return;
  for (int unit = 0; unit < 2; ++unit) {
    for (int i = 0; i < static_cast<int>(spec_.units[unit].parameters.size()); ++i) {
      for (Plane plane : kPlanes) {
        if (!views_[0].Brings(unit, i, plane, Phase::kBoth)) continue;
        const EncodedPlane got = Read(arenas_[0].data(), views_[0].InArena(unit, i, plane));
        EXPECT_EQ(got.data, Expected(unit, i, plane).data);
        EXPECT_EQ(got.scales, Expected(unit, i, plane).scales);
        EXPECT_EQ(got.amax, Expected(unit, i, plane).amax);
      }
    }
  }
}

TEST_P(LayoutViewTest, PhasesBringTheirPlanes) {
  const bool has_columns = HasColumnPlane(std::get<0>(GetParam()));
  const Plane backward = has_columns ? Plane::kColumnWise : Plane::kRowWise;
  EXPECT_EQ(views_[0].MainPlane(0, 0, Phase::kForward), Plane::kRowWise);
  EXPECT_EQ(views_[0].MainPlane(0, 0, Phase::kBackward), backward);
  EXPECT_EQ(views_[0].Brings(0, 0, Plane::kColumnWise, Phase::kForward), false);
  EXPECT_EQ(views_[0].Brings(0, 0, Plane::kRowWise, Phase::kBackward), !has_columns);
  EXPECT_EQ(views_[0].Brings(0, 0, Plane::kColumnWise, Phase::kBoth), has_columns);
}

TEST_P(LayoutViewTest, NamesAreFoundInTheirUnit) {
  EXPECT_THAT(views_[0].FindUnit("second"), IsOkAndHolds(1));
  EXPECT_THAT(views_[0].FindUnit("third"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("third")));
  EXPECT_THAT(views_[0].FindParameter(0, "first.v"), IsOkAndHolds(3));
  EXPECT_THAT(views_[0].FindParameter(0, "second.w"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("unit second")));
  EXPECT_EQ(views_[0].ResidentSlot(0), std::nullopt);
  EXPECT_EQ(views_[0].ResidentSlot(1), spec_.gather_slots);
}

INSTANTIATE_TEST_SUITE_P(FormatsAndRanks, LayoutViewTest,
                         Combine(testing::ValuesIn(EveryFormat()), Values(1, 2, 3, 4, 5, 6, 7, 8)),
                         [](const auto& info) {
                           const absl::string_view format = FormatName(std::get<0>(info.param));
                           return absl::StrCat(format, "On", std::get<1>(info.param));
                         });

TEST(LayoutViewScalesTest, PartsOfRanksThatLieOneAfterTheOtherAreOne) {
  const auto matrix = [](const char* name, int64_t columns) {
    return ParameterSpec{.name = name, .shape = {64, columns}, .encoding = {.format = Format::kMXFP8}};
  };
  ModelSpec spec;
  spec.name = "scales";
  spec.small_parameter_bytes = 0;
  // A rank's scales take 512 bytes each, but for those of "uneven", whose 544 do not fill the room between ranks.
  spec.units = {{.name = "alone", .parameters = {matrix("alone.w", 512)}},
                {.name = "two", .parameters = {matrix("two.v", 512), matrix("two.w", 512)}},
                {.name = "uneven", .parameters = {matrix("uneven.w", 544)}}};
  spec = Resolve(spec);
  ASSERT_OK_AND_ASSIGN(const server::ModelSpec parsed, server::ParseModelSpec(ToProto(spec)));
  ASSERT_OK_AND_ASSIGN(const LayoutView view, LayoutView::Create(server::Layout(parsed, 2).ToProto(), &spec, 0));
  const auto parts = [&](int unit, int parameter) {
    return view.InSlot(unit, parameter, Plane::kRowWise, Phase::kForward).scales;
  };
  ASSERT_EQ(parts(0, 0).size(), 1);
  EXPECT_EQ(parts(0, 0)[0].bytes, 1024);
  EXPECT_EQ(parts(1, 0).size(), 2);
  EXPECT_EQ(parts(1, 1).size(), 2);
  EXPECT_EQ(parts(2, 0).size(), 2);
}

TEST(LayoutViewCreateTest, ALayoutOfAnotherSpecIsRefused) {
  const ModelSpec spec = Resolve(MakeSpec(Format::kMXFP8));
  ASSERT_OK_AND_ASSIGN(const server::ModelSpec parsed, server::ParseModelSpec(ToProto(spec)));
  const v1::ModelLayout layout = server::Layout(parsed, 2).ToProto();
  ModelSpec other = spec;
  other.units.pop_back();
  EXPECT_THAT(LayoutView::Create(layout, &other, 0),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("1 units expected, got 2")));
  other = spec;
  other.units[1].parameters.pop_back();
  EXPECT_THAT(LayoutView::Create(layout, &other, 0), StatusIs(absl::StatusCode::kInternal, HasSubstr("second")));
  EXPECT_THAT(LayoutView::Create(layout, &spec, 2), StatusIs(absl::StatusCode::kInternal, HasSubstr("below 2")));
}

}  // namespace
}  // namespace paramshard::internal
