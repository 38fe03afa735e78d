#include "common/model/layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/random_model.h"

namespace paramshard {

bool operator==(const RowRange& a, const RowRange& b) { return a.begin == b.begin && a.end == b.end; }
bool operator==(const PieceCopy& a, const PieceCopy& b) {
  return a.source == b.source && a.target == b.target && a.bytes == b.bytes;
}
bool operator==(const GradientSlice& a, const GradientSlice& b) {
  return a.parameter == b.parameter && a.slot_offset == b.slot_offset && a.elements == b.elements;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename T>
std::vector<T> ByPhase(const PerPhase<T>& values) {
  return {values[Phase::kForward], values[Phase::kBackward], values[Phase::kBoth]};
}

UnitSpec UnitOf(std::vector<ParameterSpec> parameters) {
  UnitSpec unit;
  unit.parameters = std::move(parameters);
  return unit;
}

ModelSpec ModelOf(std::vector<UnitSpec> units) {
  ModelSpec spec;
  spec.units = std::move(units);
  spec.groups.resize(1);
  spec.small_parameter_bytes = 1000;
  return spec;
}

Layout LayoutOf(ParameterSpec parameter, int ranks) { return Layout(ModelOf({UnitOf({std::move(parameter)})}), ranks); }

TEST(LayoutTest, RowsAreCutInGranulesLikeTorchChunk) {
  // Three granules over two ranks: two and one, the last one of 44 rows.
  const Layout layout = LayoutOf(MakeParameter("w", {300, 256}, Format::kFP8Block128x128), 2);
  EXPECT_EQ(layout.units()[0].parameters[0].rows_per_rank, 256);
  EXPECT_EQ(layout.Extent(0, 0, 0), (RowRange{0, 256}));
  EXPECT_EQ(layout.Extent(0, 0, 1), (RowRange{256, 300}));
}

TEST(LayoutTest, RanksPastTheLastGranuleHaveEmptyExtents) {
  // Five granules over four ranks: chunks of two leave nothing for the last one.
  const Layout layout = LayoutOf(MakeParameter("w", {5 * 32, 64}, Format::kMXFP8), 4);
  EXPECT_EQ(layout.Extent(0, 0, 2), (RowRange{128, 160}));
  EXPECT_EQ(layout.Extent(0, 0, 3), (RowRange{160, 160}));
  EXPECT_EQ(layout.PlaneBytes(0, 0, 3), 0);
  EXPECT_THAT(layout.Slices(0, 3), IsEmpty());
  // Its scales' place in the small extent is all that it sends.
  EXPECT_EQ(layout.Pieces(0, Phase::kForward, 3).size(), 1u);
}

TEST(LayoutTest, MoreRanksThanGranulesAreOutOfBalance) {
  const Layout layout = LayoutOf(MakeParameter("w", {4096, 4096}, Format::kFP8Block128x128), 64);
  EXPECT_EQ(layout.Imbalance(), 2);
  EXPECT_EQ(layout.Extent(0, 0, 31).size(), 128);
  EXPECT_EQ(layout.Extent(0, 0, 32).size(), 0);
}

TEST(LayoutTest, GranuleLargerThanTheMatrixTakesItsBytesOnly) {
  const Layout layout = LayoutOf(MakeParameter("w", {2, 4096}, Format::kFP8Block128x128), 4);
  EXPECT_EQ(layout.units()[0].parameters[0].rows_per_rank, 128);
  EXPECT_EQ(layout.units()[0].parameters[0].row_wise.data_stride, 2 * 4096);
}

// One matrix with both planes and one norm.
UnitSpec SmallUnit() {
  return UnitOf({MakeParameter("w", {96, 64}, Format::kMXFP8), MakeParameter("norm", {64}, Format::kFP32)});
}

// Two such units over two ranks, with every number computed by hand.
class SmallModelTest : public testing::Test {
 protected:
  const Layout layout_{ModelOf({SmallUnit(), SmallUnit()}), 2};
};

TEST_F(SmallModelTest, ArenaHoldsDataExtentsThenTheSmallExtent) {
  const UnitLayout& unit = layout_.units()[0];
  EXPECT_EQ(unit.parameters[0].rows_per_rank, 64);
  EXPECT_EQ(unit.parameters[0].row_wise.data_stride, 64 * 64);
  EXPECT_EQ(unit.parameters[0].row_wise.arena_offset, 0);
  EXPECT_EQ(unit.parameters[0].column_wise->arena_offset, 4096);
  EXPECT_EQ(unit.small_extent_offset, 8192);
  // Scales 64 x 2 row-wise, the norm, scales 2 x 64 column-wise: three runs.
  EXPECT_EQ(unit.parameters[0].row_wise.scale_offset, 0);
  EXPECT_EQ(unit.parameters[1].row_wise.small_data_offset, 256);
  EXPECT_EQ(unit.parameters[0].column_wise->scale_offset, 512);
  EXPECT_EQ(unit.arena_bytes, 8192 + 768);
  EXPECT_EQ(layout_.units()[1].arena_offset, 8960);
  EXPECT_EQ(layout_.arena_bytes(0), 2 * 8960);
}

TEST_F(SmallModelTest, SlotsHoldMatricesThenSmallRuns) {
  const UnitLayout& unit = layout_.units()[0];
  EXPECT_THAT(ByPhase(unit.parameters[0].row_wise.slot_offset), ElementsAre(0, std::nullopt, 0));
  EXPECT_THAT(ByPhase(unit.parameters[0].column_wise->slot_offset), ElementsAre(std::nullopt, 0, 8192));
  EXPECT_THAT(ByPhase(unit.slot_bytes), ElementsAre(8192 + 2 * 512, 8192 + 2 * 512, 16384 + 2 * 768));
  EXPECT_EQ(unit.small[Phase::kForward].begin, 0);
  EXPECT_EQ(unit.small[Phase::kBackward].begin, 256);
  EXPECT_EQ(unit.small[Phase::kBackward].slot_offset, 8192);
  EXPECT_EQ(unit.small[Phase::kBoth].slot_offset, 16384);
}

TEST_F(SmallModelTest, PiecesAreExactForDataAndWholeForSmallRuns) {
  EXPECT_THAT(layout_.Pieces(0, Phase::kForward, 1),
              ElementsAre(PieceCopy{0, 4096, 32 * 64}, PieceCopy{8192, 8192 + 512, 512}));
  EXPECT_THAT(layout_.Pieces(1, Phase::kBackward, 0),
              ElementsAre(PieceCopy{8960 + 4096, 0, 64 * 64}, PieceCopy{8960 + 8192 + 256, 8192, 512}));
  EXPECT_THAT(layout_.Pieces(0, Phase::kBoth, 0),
              ElementsAre(PieceCopy{0, 0, 4096}, PieceCopy{4096, 8192, 4096}, PieceCopy{8192, 16384, 768}));
}

TEST_F(SmallModelTest, TheNormGoesToTheRankWithFewerRows) {
  EXPECT_EQ(layout_.units()[0].parameters[1].owner, 1);
  EXPECT_EQ(layout_.Extent(0, 1, 0), (RowRange{0, 0}));
  EXPECT_EQ(layout_.Extent(0, 1, 1), (RowRange{0, 1}));
  EXPECT_EQ(layout_.PlaneBytes(0, 1, 0), 0);
  EXPECT_EQ(layout_.PlaneBytes(0, 1, 1), 256);
}

TEST_F(SmallModelTest, SlicesFollowTheRows) {
  EXPECT_THAT(layout_.Slices(0, 0), ElementsAre(GradientSlice{0, 0, 64 * 64}));
  EXPECT_THAT(layout_.Slices(0, 1), ElementsAre(GradientSlice{0, 64 * 64 * 4, 32 * 64}, GradientSlice{1, 24576, 64}));
  EXPECT_EQ(layout_.units()[0].gradient_bytes, 24576 + 256);
}

TEST_F(SmallModelTest, OffsetsCountFromTheirUnitAndTheirSmallExtent) {
  const UnitLayout& unit = layout_.units()[1];
  EXPECT_EQ(unit.arena_offset, 8960);
  EXPECT_EQ(unit.small_extent_offset, 8192);
  EXPECT_EQ(unit.parameters[0].column_wise->arena_offset, 4096);
  EXPECT_EQ(unit.parameters[0].column_wise->scale_offset, 512);
  EXPECT_EQ(unit.parameters[0].column_wise->small_data_offset, -1);
  EXPECT_EQ(unit.parameters[1].row_wise.arena_offset, -1);
  EXPECT_EQ(unit.parameters[1].row_wise.slot_offset[Phase::kForward], std::nullopt);
  EXPECT_EQ(unit.parameters[1].rows_per_rank, 0);
  EXPECT_EQ(unit.small[Phase::kBackward].begin, 256);
}

TEST_F(SmallModelTest, OwnSlicesLandBehindTheSlots) {
  const int64_t landing = layout_.slots_bytes();
  const int64_t slot = layout_.gradient_slot_offsets()[1];
  const std::vector<ParameterLayout>& parameters = layout_.units()[0].parameters;
  EXPECT_THAT(layout_.LandingCopies(0, /*rank=*/1, /*gradient_slot=*/1, {}),
              ElementsAre(PieceCopy{slot + 64 * 64 * 4, landing + parameters[0].landing_offset, 32 * 64 * 4},
                          PieceCopy{slot + 24576, landing + parameters[1].landing_offset, 256}));
  EXPECT_THAT(layout_.LandingCopies(0, 1, 1, {0}),
              ElementsAre(PieceCopy{slot + 24576, landing + parameters[1].landing_offset, 256}));
  EXPECT_THAT(layout_.LandingCopies(0, 0, 1, {0}), IsEmpty());
}

TEST(LayoutTest, PlaneBytesBelowTheThresholdAreSmall) {
  ModelSpec spec = ModelOf({UnitOf({MakeParameter("b", {250}, Format::kFP32)})});
  EXPECT_FALSE(Layout(spec, 2).units()[0].parameters[0].owner.has_value());
  spec.small_parameter_bytes = 1001;
  EXPECT_EQ(Layout(spec, 2).units()[0].parameters[0].owner, 0);
  // Both planes and their scales count: 2 x 100 x 5 bytes of data alone would be under 1001.
  spec.units[0].parameters[0] = MakeParameter("w", {100, 5}, Format::kMXFP8);
  EXPECT_FALSE(Layout(spec, 2).units()[0].parameters[0].owner.has_value());
}

TEST(LayoutTest, OneRankOwnsEverything) {
  const Layout layout(ModelOf({SmallUnit()}), 1);
  EXPECT_EQ(layout.Imbalance(), 1);
  EXPECT_EQ(layout.units()[0].parameters[1].owner, 0);
  EXPECT_EQ(layout.Extent(0, 0, 0), (RowRange{0, 96}));
  EXPECT_THAT(layout.Pieces(0, Phase::kForward, 0), ElementsAre(PieceCopy{0, 0, 96 * 64}, PieceCopy{12288, 6144, 512}));
}

TEST(LayoutTest, AScaleOfTheTensorIsOnEveryRankAlsoWithoutRows) {
  ModelSpec spec = ModelOf({UnitOf({MakeParameter("w", {2, 64}, Format::kFP8TensorCurrent)})});
  spec.small_parameter_bytes = 0;
  const Layout layout(spec, 3);
  EXPECT_EQ(layout.Extent(0, 0, 2).size(), 0);
  EXPECT_EQ(layout.units()[0].parameters[0].row_wise.scale_offset, 0);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 0), 64 + 4);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 2), 4);
}

TEST(LayoutTest, TheAmaxOfATensorLiesBehindItsScales) {
  // 16 rows of 80 elements a rank: 5 scales, then to the next multiple of 4.
  ModelSpec spec = ModelOf(
      {UnitOf({MakeParameter("w", {32, 80}, Format::kNVFP4_2D), MakeParameter("v", {32, 80}, Format::kNVFP4_2D)})});
  spec.small_parameter_bytes = 0;
  const Layout layout(spec, 3);
  const std::vector<ParameterLayout>& parameters = layout.units()[0].parameters;
  EXPECT_EQ(parameters[0].row_wise.scale_offset, 0);
  EXPECT_EQ(parameters[0].row_wise.amax_offset, 8);
  EXPECT_EQ(parameters[1].row_wise.scale_offset, 16);
  EXPECT_EQ(parameters[1].row_wise.amax_offset, 24);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 0), 16 * 40 + 5 + 4);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 2), 4);
}

TEST(LayoutTest, TheAmaxOfASmallParameterLiesOnItsOwner) {
  ModelSpec spec = ModelOf({UnitOf({MakeParameter("w", {16, 16}, Format::kNVFP4_2D)})});
  spec.small_parameter_bytes = 1000;
  const Layout layout(spec, 2);
  const PlaneLayout& plane = layout.units()[0].parameters[0].row_wise;
  EXPECT_EQ(plane.small_data_offset, 0);
  EXPECT_EQ(plane.scale_offset, 128);
  EXPECT_EQ(plane.amax_offset, 132);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 0), 128 + 1 + 4);
  EXPECT_EQ(layout.PlaneBytes(0, 0, 1), 0);
}

TEST(LayoutTest, ScalarIsOneByOne) {
  const Layout layout = LayoutOf(MakeParameter("scale", {}, Format::kFP32), 3);
  EXPECT_EQ(layout.Extent(0, 0, 0), (RowRange{0, 1}));
  EXPECT_EQ(layout.units()[0].slot_bytes[Phase::kForward], 3 * 256);
}

TEST(LayoutTest, UnitsAboveTwiceTheMedianShareTheLastSlot) {
  const auto unit = [](int64_t rows) { return UnitOf({MakeParameter("w", {rows, 256}, Format::kBF16)}); };
  ModelSpec spec = ModelOf({unit(4096), unit(128), unit(128), unit(128)});
  const Layout layout(spec, 4);
  EXPECT_THAT(layout.slot_bytes(), ElementsAre(65536, 65536, 2097152));
  EXPECT_THAT(layout.slot_offsets(), ElementsAre(0, 65536, 131072));
  EXPECT_THAT(layout.gradient_slot_bytes(), ElementsAre(131072, 4194304));

  // The embedding has its own slot, filled by one gather of both, so it does not count for the ring, but
  // for the gradient slots.
  spec.units[0].reshard_after_forward = false;
  const Layout resident(spec, 4);
  EXPECT_THAT(resident.slot_bytes(), ElementsAre(65536, 65536, 65536, 2097152));
  EXPECT_EQ(resident.units()[0].resident_slot, 3);
  EXPECT_THAT(resident.gradient_slot_bytes(), ElementsAre(131072, 4194304));
}

TEST(LayoutTest, GatherSlotsOfOneRankHaveSizesAndNoMemory) {
  ModelSpec spec = ModelOf({UnitOf({MakeParameter("w", {128, 256}, Format::kBF16)})});
  const Layout layout(spec, 1);
  EXPECT_THAT(layout.slot_bytes(), ElementsAre(65536, 65536, 65536));
  EXPECT_THAT(layout.slot_offsets(), ElementsAre(0, 0, 0));
  EXPECT_THAT(layout.gradient_slot_offsets(), ElementsAre(0, 131072));
  EXPECT_EQ(layout.slots_bytes(), 262144);
  // Devices share no empty memory.
  spec.units[0].parameters[0].trainable = false;
  EXPECT_EQ(Layout(spec, 1).slots_bytes(), 4096);
}

TEST(LayoutTest, FrozenParametersHaveNoPlaceForGradients) {
  const auto frozen = [](ParameterSpec spec) {
    spec.trainable = false;
    return spec;
  };
  const ParameterSpec large = MakeParameter("w", {4096, 256}, Format::kBF16);
  const ParameterSpec small = MakeParameter("v", {128, 256}, Format::kBF16);
  const Layout layout(ModelOf({UnitOf({frozen(large)}), UnitOf({frozen(large), small})}), 2);
  EXPECT_EQ(layout.units()[0].gradient_bytes, 0);
  EXPECT_EQ(layout.units()[1].gradient_bytes, 128 * 256 * 4);
  EXPECT_THAT(layout.gradient_slot_bytes(), ElementsAre(128 * 256 * 4, 128 * 256 * 4));
  EXPECT_EQ(layout.landing_bytes(0), 64 * 256 * 4);
  EXPECT_THAT(layout.Slices(0, 0), IsEmpty());
  EXPECT_THAT(layout.Slices(1, 1), ElementsAre(GradientSlice{1, 64 * 256 * 4, 64 * 256}));
  // Gathers bring frozen parameters like any other.
  EXPECT_EQ(layout.Pieces(1, Phase::kForward, 0).size(), 2u);
  // Nothing is trained: slots have no bytes.
  const Layout idle(ModelOf({UnitOf({frozen(large)})}), 2);
  EXPECT_THAT(idle.gradient_slot_bytes(), ElementsAre(0, 0));
  EXPECT_EQ(idle.landing_bytes(0), 0);
}

TEST(LayoutTest, EqualSmallParametersOfAUnitSpreadOverRanks) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < 8; ++i) {
    units.push_back(UnitOf({MakeParameter("a", {100}, Format::kFP32), MakeParameter("b", {100}, Format::kFP32)}));
  }
  const Layout layout(ModelOf(units), 4);
  EXPECT_EQ(layout.Imbalance(), 1);
  for (const UnitLayout& unit : layout.units()) {
    EXPECT_NE(unit.parameters[0].owner, unit.parameters[1].owner);
  }
}

TEST(LayoutTest, MoreElementsThan32BitsCount) {
  // 128256 x 36000 is about 4.6e9 elements; 16032 rows a rank.
  const Layout layout = LayoutOf(MakeParameter("embedding", {128256, 36000}, Format::kBF16), 8);
  EXPECT_EQ(layout.units()[0].parameters[0].row_wise.data_stride, 1'154'304'000);
  EXPECT_EQ(layout.units()[0].slot_bytes[Phase::kForward], 9'234'432'000);
  EXPECT_THAT(layout.Pieces(0, Phase::kForward, 7), ElementsAre(PieceCopy{0, 8'080'128'000, 1'154'304'000}));
  EXPECT_THAT(layout.Slices(0, 7), ElementsAre(GradientSlice{0, 16'160'256'000, 577'152'000}));
}

// Returns the largest model of 1, 2, 4, ... parameters of a kind that passes the check.
ModelSpec LargestAccepted(const v1::ParameterSpec& parameter, int64_t small_parameter_bytes) {
  v1::ModelSpec proto;
  proto.set_name("m");
  proto.set_gather_slots(64);
  proto.set_gradient_slots(64);
  proto.set_small_parameter_bytes(small_parameter_bytes);
  proto.add_units()->set_name("u");
  ModelSpec accepted;
  for (int count = 1;; count *= 2) {
    while (proto.units(0).parameters_size() < count) {
      v1::ParameterSpec& added = *proto.mutable_units(0)->add_parameters();
      added = parameter;
      added.set_name(absl::StrCat(proto.units(0).parameters_size()));
    }
    absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
    if (!spec.ok()) return accepted;
    accepted = *std::move(spec);
  }
}

// The largest number of ranks and slots. A sanitizer finds overflow itself; otherwise sizes do not add
// up.
TEST(LayoutTest, SizesOfEveryCheckedSpecFit64Bits) {
  for (const int64_t small_parameter_bytes : {int64_t{0}, INT64_MAX}) {
    for (const v1::Format format : {v1::FORMAT_FP32, v1::FORMAT_MXFP8, v1::FORMAT_FP8_BLOCK_128X128}) {
      for (const int64_t rows : {1, 1 << 20}) {
        SCOPED_TRACE(absl::StrCat(v1::Format_Name(format), " ", small_parameter_bytes, " ", rows));
        v1::ParameterSpec parameter;
        parameter.set_format(format);
        parameter.add_shape(rows);
        parameter.add_shape((kMaxElements - 1) / rows);
        const ModelSpec spec = LargestAccepted(parameter, small_parameter_bytes);
        ASSERT_EQ(spec.units.size(), 1u) << "not even one parameter";

        const Layout layout(spec, kMaxShardSize);
        const auto parameters = static_cast<double>(spec.units[0].parameters.size());
        const auto elements = static_cast<double>(rows * parameter.shape(1));
        EXPECT_GE(static_cast<double>(layout.units()[0].slot_bytes[Phase::kForward]), parameters * elements);
        EXPECT_GE(static_cast<double>(layout.units()[0].gradient_bytes), parameters * elements * 4);
        EXPECT_GE(static_cast<double>(layout.slots_bytes()), 64 * parameters * elements * 5);
        EXPECT_GT(layout.arena_bytes(0), 0);
      }
    }
  }
}

}  // namespace
}  // namespace paramshard
