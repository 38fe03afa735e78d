#include "server/state/shard_placement.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"

namespace paramshard::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::ParameterSpec Parameter(const std::string& name, std::vector<int64_t> shape, v1::MomentType moments) {
  v1::ParameterSpec parameter = MakeParameter(name, std::move(shape), v1::FORMAT_BF16);
  parameter.set_exp_avg_type(moments);
  parameter.set_exp_avg_sq_type(moments);
  return parameter;
}

ShardPlacement Place(std::vector<v1::ParameterSpec> parameters) {
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", std::move(parameters))}));
  return ShardPlacement::Of(spec, Layout(spec, 1), 0, MovePolicy{.moves = true});
}

// The bytes of an extent in an array, where the state lies first and where a step leaves it.
struct Taken {
  int memory;
  int64_t begin, end;
};

std::vector<Taken> TakenBy(const ShardPlacement& placement, const ModelSpec& spec) {
  std::vector<Taken> taken;
  for (int i = 0; i < static_cast<int>(placement.extents.size()); ++i) {
    const ShardExtent& extent = placement.extents[i];
    const ParameterSpec& parameter = spec.units[extent.unit].parameters[extent.parameter];
    const int64_t moved = i < placement.trainable_count ? placement.moves.distance : 0;
    const int64_t rows = extent.rows.size();
    const auto add = [&](int memory, int array, int64_t bytes) {
      if (bytes == 0) return;
      const int64_t begin = extent.state_offsets[array];
      taken.push_back({memory, begin, begin + bytes});
      if (moved > 0) taken.push_back({memory, begin + moved, begin + moved + bytes});
    };
    if (parameter.master_type == MasterType::kFP32) add(0, kFloatMasterArray, rows * parameter.columns() * 4);
    if (parameter.master_type == MasterType::kBF16Remainder) {
      add(0, kRemainderArray, rows * parameter.columns() * 2);
      add(0, kWeightArray, rows * parameter.columns() * 2);
    }
    for (const MomentTraits& moment : kMomentKinds) {
      const std::optional<MomentType> type = MomentTypeOf(parameter, moment.kind);
      if (!type.has_value()) continue;
      const int memory = 1 + static_cast<int>(moment.kind);
      add(memory, MomentArray(moment.kind), rows * parameter.columns() * MomentBytes(*type));
      add(memory, ScaleArray(moment.kind), 4 * MomentScaleCount(*type, rows, parameter.columns()));
    }
  }
  return taken;
}

int64_t MemoryBytes(const ShardPlacement& placement, int memory) {
  return memory == 0 ? placement.master_memory_bytes : placement.moment_memory_bytes.values[memory - 1];
}

// Neither other arrays nor frozen parameters are ever in the way of a move.
TEST(ShardPlacementTest, AStepMovesTheStateOverNothingElse) {
  v1::ParameterSpec frozen = MakeParameter("frozen", {30, 70}, v1::FORMAT_BF16);
  frozen.set_trainable(false);
  frozen.set_master_type(v1::MASTER_TYPE_FP32);
  v1::ParameterSpec frozen_split = frozen;
  frozen_split.set_name("frozen.split");
  frozen_split.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  v1::ParameterSpec split = Parameter("split", {33, 50}, v1::MOMENT_TYPE_BF16);
  split.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  const ModelSpec spec = Parse(MakeSpec(
      "m", {MakeUnit("u", {Parameter("a", {300, 130}, v1::MOMENT_TYPE_FP8), frozen, split, frozen_split,
                           Parameter("b", {7}, v1::MOMENT_TYPE_FP32), Parameter("c", {5, 1000}, v1::MOMENT_TYPE_FP16),
                           Parameter("d", {64, 64}, v1::MOMENT_TYPE_BF16)})}));
  const ShardPlacement placement = ShardPlacement::Of(spec, Layout(spec, 1), 0, MovePolicy{.moves = true});
  EXPECT_EQ(placement.trainable_count, 5);
  EXPECT_THAT(placement.moves.bands, SizeIs(1));
  ASSERT_GT(placement.moves.distance, 0);
  // One band: what a step reads and what it writes has nothing in common.
  const std::vector<Taken> taken = TakenBy(placement, spec);
  for (size_t i = 0; i < taken.size(); ++i) {
    EXPECT_LE(taken[i].end, MemoryBytes(placement, taken[i].memory));
    for (size_t j = 0; j < i; ++j) {
      const bool apart = taken[i].begin >= taken[j].end || taken[j].begin >= taken[i].end;
      EXPECT_TRUE(taken[i].memory != taken[j].memory || apart) << i << " and " << j;
    }
  }
  const ShardBytes& bytes = placement.bytes;
  EXPECT_EQ(bytes.master + bytes.moments.values[0] + bytes.moments.values[1] + bytes.room,
            placement.master_memory_bytes + placement.moment_memory_bytes.values[0] +
                placement.moment_memory_bytes.values[1]);
}

// Ranks have what they own, and no place for what others do.
TEST(ShardPlacementTest, OwnersHaveWholeMatrices) {
  const ModelSpec spec = Parse(MakeSpec(
      "m", {MakeUnit("u", {Owned(MakeParameter("large", {64, 64})), Owned(MakeParameter("small", {64, 16}))})}));
  const Layout layout(spec, 3);
  const auto place = [&](int rank) { return ShardPlacement::Of(spec, layout, rank, MovePolicy{}); };
  ASSERT_THAT(place(0).extents, SizeIs(1));
  EXPECT_EQ(place(0).extents[0].parameter, 0);
  EXPECT_EQ(place(0).extents[0].elements, 64 * 64);
  EXPECT_EQ(place(0).bytes.master, 64 * 64 * 4);
  EXPECT_EQ(place(0).bytes.planes, 64 * 64 * 4);
  ASSERT_THAT(place(1).extents, SizeIs(1));
  EXPECT_EQ(place(1).extents[0].parameter, 1);
  EXPECT_EQ(place(1).bytes.Total(), 5 * 64 * 16 * 4);
  EXPECT_THAT(place(2).extents, IsEmpty());
  EXPECT_EQ(place(2).bytes.Total(), place(2).bytes.planes);
}

// Bands of 4 Mi elements, or 256.
TEST(ShardPlacementTest, ALargeStateTakesALittleMore) {
  for (const auto& [rows, bands] : {std::pair(32768, 64), std::pair(131072, 256), std::pair(524288, 256)}) {
    const ShardPlacement placement = Place(
        {Parameter("a", {2 * rows, 2048}, v1::MOMENT_TYPE_FP32), Parameter("b", {rows, 4096}, v1::MOMENT_TYPE_FP32)});
    EXPECT_THAT(placement.moves.bands, SizeIs(bands));
    EXPECT_EQ(placement.moves.distance, 2 * 4 * (int64_t{8192} * rows / bands));
    const ShardBytes& bytes = placement.bytes;
    EXPECT_EQ(bytes.room, 3 * placement.moves.distance);
    EXPECT_EQ(bytes.master + bytes.moments.values[0] + bytes.moments.values[1], bands / 2 * bytes.room);
  }
}

// One push of one rank is the whole sum.
TEST(ShardPlacementTest, OnePushOfOneRankIsKeptInItsOwnType) {
  const auto accumulators = [](int pushes, int ranks, bool has_replicas) {
    v1::ParameterSpec bf16 = MakeParameter("a", {64, 64});
    bf16.set_gradient_type(v1::GRADIENT_TYPE_BF16);
    v1::ParameterSpec frozen = MakeParameter("c", {64, 64});
    frozen.set_trainable(false);
    v1::ModelSpec spec = MakeSpec("m", {MakeUnit("u", {bf16, MakeParameter("b", {64, 64}), frozen})});
    if (pushes > 0) spec.set_pushes_per_step(pushes);
    const ModelSpec parsed = Parse(spec);
    const ShardPlacement placement =
        ShardPlacement::Of(parsed, Layout(parsed, ranks), 0, MovePolicy{.has_replicas = has_replicas});
    EXPECT_EQ(placement.extents[1].accumulator_type, GradientType::kFP32);
    EXPECT_EQ(placement.extents[2].accumulator_type, std::nullopt);
    EXPECT_EQ(placement.bytes.gradients,
              placement.extents[0].AccumulatorBytes() + placement.extents[1].AccumulatorBytes());
    return *placement.extents[0].accumulator_type;
  };
  EXPECT_EQ(accumulators(1, 1, false), GradientType::kBF16);
  EXPECT_EQ(accumulators(0, 1, false), GradientType::kFP32);
  EXPECT_EQ(accumulators(2, 1, false), GradientType::kFP32);
  EXPECT_EQ(accumulators(1, 2, false), GradientType::kFP32);
  EXPECT_EQ(accumulators(1, 1, true), GradientType::kFP32);
}

// Fewer elements than the least of a band, or rows that no band can cut: as much room as the longest array takes.
TEST(ShardPlacementTest, AStateOfOneBandTakesAsMuchRoomAsItself) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1024, 64}, {8192, 4099}}) {
    const ShardPlacement placement = Place({Parameter("a", shape, v1::MOMENT_TYPE_FP32)});
    EXPECT_THAT(placement.moves.bands, SizeIs(1));
    EXPECT_EQ(placement.moves.distance, shape[0] * shape[1] * 4);
    EXPECT_EQ(placement.bytes.room, 3 * placement.moves.distance);
  }
}

// Where the state stays, the upper halves are the plane.
TEST(ShardPlacementTest, MastersWithRemaindersHaveUpperHalvesWhereTheyMove) {
  for (const bool trainable : {true, false}) {
    v1::ParameterSpec split = Parameter("b", {64, 64}, v1::MOMENT_TYPE_FP32);
    if (!trainable) split = MakeParameter("b", {64, 64}, v1::FORMAT_BF16);
    split.set_trainable(trainable);
    split.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
    const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {split})}));
    for (const bool moves : {true, false}) {
      const ShardPlacement placement = ShardPlacement::Of(spec, Layout(spec, 1), 0, MovePolicy{.moves = moves});
      EXPECT_EQ(placement.bytes.master, 64 * 64 * (moves ? 4 : 2));
      EXPECT_EQ(placement.extents[0].StateBytes(), 64 * 64 * ((moves ? 4 : 2) + (trainable ? 8 : 0)));
      EXPECT_EQ(placement.moves.bands.size(), moves && trainable ? 1u : 0u);
      // One band: two arrays of masters and two of moments have room.
      EXPECT_EQ(placement.bytes.room, 4 * placement.moves.distance);
      EXPECT_EQ(placement.moves.distance, moves && trainable ? 64 * 64 * 4 : 0);
    }
  }
}

TEST(ShardPlacementTest, AStateThatStaysTakesNoRoom) {
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {Parameter("a", {300, 130}, v1::MOMENT_TYPE_FP8)})}));
  const ShardPlacement placement = ShardPlacement::Of(spec, Layout(spec, 1), 0);
  EXPECT_THAT(placement.moves.bands, IsEmpty());
  EXPECT_EQ(placement.bytes.room, 0);
}

TEST(ShardPlacementTest, WithoutTrainableParametersThereAreNoBands) {
  v1::ParameterSpec frozen = MakeParameter("frozen", {30, 70}, v1::FORMAT_BF16);
  frozen.set_trainable(false);
  const ShardPlacement placement = Place({frozen});
  EXPECT_THAT(placement.moves.bands, IsEmpty());
  EXPECT_EQ(placement.bytes.room, 0);
  EXPECT_EQ(placement.bytes.Total(), placement.bytes.planes);
}

}  // namespace
}  // namespace paramshard::server
