#include "client/internal/layout_view.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "client/internal/spec_proto.h"
#include "gmock/gmock.h"
#include "kernels/formats/codec.h"
#include "kernels/random/initial_values.h"
#include "server/layout/layout.h"
#include "server/layout/model_spec.h"
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

struct EncodedPlane {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
};

EncodedPlane AllocatePlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t columns) {
  return {std::vector<uint8_t>(DataBytes(encoding, rows, columns)),
          std::vector<uint8_t>(ScaleBytes(encoding, plane, rows, columns))};
}

// A matrix's rows [begin, end), encoded.
std::pair<EncodedPlane, EncodedPlane> Encode(const Encoding& encoding, const std::vector<float>& matrix, int64_t begin,
                                             int64_t end, int64_t columns) {
  EncodedPlane row_wise = AllocatePlane(encoding, Plane::kRowWise, end - begin, columns);
  EncodedPlane column_wise = AllocatePlane(encoding, Plane::kColumnWise, end - begin, columns);
  const bool has_columns = HasColumnPlane(encoding.format);
  EncodePlanes(encoding, matrix.data() + begin * columns, end - begin, columns,
               {row_wise.data.data(), row_wise.scales.data()},
               {has_columns ? column_wise.data.data() : nullptr, column_wise.scales.data()});
  return {row_wise, column_wise};
}

// A model whose planes lie in arenas as the server puts them.
class LayoutViewTest : public testing::TestWithParam<std::tuple<Format, int>> {
 protected:
  LayoutViewTest() : spec_(MakeSpec(std::get<0>(GetParam()))), ranks_(std::get<1>(GetParam())) {}

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

  const Encoding& EncodingOf(int unit, int parameter) const { return spec_.units[unit].parameters[parameter].encoding; }

  std::vector<float> MakeMatrix(int unit, int parameter) const {
    const int64_t elements = views_[0].Rows(unit, parameter) * views_[0].Columns(unit, parameter);
    std::vector<float> matrix(elements);
    FillInitialValues({Initializer::kNormal, 0.0f, 1.0f}, 1, unit * 10 + parameter, 0, elements, matrix.data());
    return matrix;
  }

  void FillArenas(int unit, int parameter) {
    const server::UnitLayout& unit_layout = server_layout_->units()[unit];
    const server::ParameterLayout& layout = unit_layout.parameters[parameter];
    const std::vector<float> matrix = MakeMatrix(unit, parameter);
    for (int rank = 0; rank < ranks_; ++rank) {
      const server::RowRange rows = server_layout_->Extent(unit, parameter, rank);
      const auto [row_wise, column_wise] =
          Encode(EncodingOf(unit, parameter), matrix, rows.begin, rows.end, views_[0].Columns(unit, parameter));
      Place(unit_layout, layout.row_wise, row_wise, rank);
      if (layout.column_wise.has_value()) Place(unit_layout, *layout.column_wise, column_wise, rank);
    }
  }

  void Place(const server::UnitLayout& unit, const server::PlaneLayout& place, const EncodedPlane& plane, int rank) {
    uint8_t* arena = arenas_[rank].data() + unit.arena_offset;
    uint8_t* small = arena + unit.small_extent_offset;
    const bool is_small = place.small_data_offset >= 0;
    std::copy(plane.data.begin(), plane.data.end(),
              is_small ? small + place.small_data_offset : arena + place.arena_offset);
    std::copy(plane.scales.begin(), plane.scales.end(), small + std::max<int64_t>(place.scale_offset, 0));
  }

  static EncodedPlane Read(const uint8_t* memory, const PlanePlace& place) {
    EncodedPlane plane;
    plane.data.assign(memory + place.data.offset, memory + place.data.offset + place.data.bytes);
    for (const ByteRange& range : place.scales) {
      plane.scales.insert(plane.scales.end(), memory + range.offset, memory + range.offset + range.bytes);
    }
    return plane;
  }

  // What encoding the whole matrix at once gives.
  EncodedPlane Expected(int unit, int parameter, Plane plane) const {
    const auto [row_wise, column_wise] = Encode(EncodingOf(unit, parameter), MakeMatrix(unit, parameter), 0,
                                                views_[0].Rows(unit, parameter), views_[0].Columns(unit, parameter));
    return plane == Plane::kRowWise ? row_wise : column_wise;
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
      for (int rank = 0; rank < ranks_; ++rank) {
        for (const PieceCopy& piece : views_[rank].OwnPieces(unit, phase)) {
          ASSERT_LE(piece.source + piece.bytes, static_cast<int64_t>(arenas_[rank].size()));
          ASSERT_LE(piece.target + piece.bytes, static_cast<int64_t>(slot.size()));
          std::memcpy(slot.data() + piece.target, arenas_[rank].data() + piece.source, piece.bytes);
        }
      }
      int64_t bytes = 0;
      for (int i = 0; i < static_cast<int>(spec_.units[unit].parameters.size()); ++i) {
        for (Plane plane : kPlanes) {
          if (!views_[0].Brings(unit, i, plane, phase)) continue;
          const EncodedPlane got = Read(slot.data(), views_[0].InSlot(unit, i, plane, phase));
          EXPECT_EQ(got.data, Expected(unit, i, plane).data) << unit << " " << i;
          EXPECT_EQ(got.scales, Expected(unit, i, plane).scales) << unit << " " << i;
          bytes += static_cast<int64_t>(got.data.size() + got.scales.size());
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
                         Combine(Values(Format::kMXFP8, Format::kFP8Block128x128, Format::kFP32), Values(1, 2, 3, 7)),
                         [](const auto& info) {
                           const absl::string_view format = FormatName(std::get<0>(info.param));
                           return absl::StrCat(format, "On", std::get<1>(info.param));
                         });

TEST(LayoutViewCreateTest, ALayoutOfAnotherSpecIsRefused) {
  const ModelSpec spec = MakeSpec(Format::kMXFP8);
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
