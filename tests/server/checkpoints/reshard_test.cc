// A state that any world has saved is restored byte for byte by any other world.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/format.h"
#include "kernels/optim/optimizers.h"
#include "tests/common/model/random_model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using checkpoint::Reader;
using checkpoint::SavedModel;
using checkpoint::World;
using ::testing::IsEmpty;

constexpr int kMostRanks = 9;

std::vector<World> AllWorlds() {
  std::vector<World> worlds;
  for (int size = 1; size <= kMostRanks; ++size) {
    for (int shard_size = 1; shard_size <= size; ++shard_size) {
      if (size % shard_size == 0) worlds.push_back({size, shard_size});
    }
  }
  return worlds;
}

std::string Text(const World& world) { return absl::StrCat(world.size, " ranks in groups of ", world.shard_size); }

class ReshardTest : public RestoreTest {
 protected:
  static void ExpectRestored(const Reader& reader, const SavedModel& saved, const ShardWorld& world,
                             int ranks_of_daemon) {
    SCOPED_TRACE(absl::StrCat("into ", Text(world.world()), ", ", ranks_of_daemon, " a daemon"));
    ASSERT_OK(RestoreByDaemons(reader, world, ranks_of_daemon));
    EXPECT_THAT(world.FirstDifference(saved.arrays()), IsEmpty());
    // A second save holds the same bytes.
    ASSERT_EQ(world.Save().arrays(), saved.arrays());
    ASSERT_EQ(world.Save().common().step_counts, saved.common().step_counts);
  }
};

// Every type of state; each source has bytes of its own, so that nothing is left of the one before.
TEST_F(ReshardTest, AnyWorldIsRestoredIntoAnyOther) {
  std::vector<std::unique_ptr<ShardWorld>> targets;
  for (const World& world : AllWorlds()) {
    targets.push_back(std::make_unique<ShardWorld>(checkpoint::SpecOfEverything(), world));
  }
  int count = 0;
  for (const World& world : AllWorlds()) {
    SCOPED_TRACE(absl::StrCat("from ", Text(world)));
    const SavedModel saved(checkpoint::SpecOfEverything(), 100 + count);
    ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, world), {}));
    for (const auto& target : targets) ExpectRestored(reader, saved, *target, 1 + count++ % kMostRanks);
    if (HasFatalFailure()) return;
  }
}

// Types of state that descriptions leave to defaults, at random.
ModelSpec RandomSpec(RandomModel& random) {
  ModelSpec spec = random.Spec();
  const Optimizer optimizer = kOptimizers[random.Integer(0, kOptimizerCount - 1)].optimizer;
  // Not all parameters are matrices.
  spec.groups[0].optimizer = IsMuon(optimizer) ? Optimizer::kLion : optimizer;
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (!parameter.trainable) {
        if (random.OneIn(4)) parameter.master_type = MasterType::kFP32;
        continue;
      }
      parameter.exp_avg_type = kMomentTypes[random.Integer(0, 3)];
      parameter.exp_avg_sq_type = kMomentTypes[random.Integer(0, 3)];
      if (parameter.encoding.format == Format::kBF16 && random.OneIn(2)) {
        parameter.master_type = MasterType::kBF16Remainder;
      }
    }
  }
  return spec;
}

// Returns the spec with owners of some matrices.
ModelSpec WithOwners(RandomModel& random, ModelSpec spec) {
  random.OwnSome(spec);
  return checkpoint::Checked(spec);
}

TEST_F(ReshardTest, AnyModelIsRestoredIntoAnyWorld) {
  const uint64_t first_seed = FirstSeed(1);
  for (uint64_t seed = first_seed; seed < first_seed + 12; ++seed) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
    RandomModel random(seed);
    const ModelSpec spec = RandomSpec(random);
    const SavedModel saved(WithOwners(random, spec), seed);
    const std::vector<World> worlds = AllWorlds();
    const auto draw = [&] { return worlds[random.Integer(0, static_cast<int64_t>(worlds.size()) - 1)]; };
    const World from = draw();
    SCOPED_TRACE(absl::StrCat("from ", Text(from)));
    ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, from), {}));
    for (int i = 0; i < 3; ++i) {
      const ShardWorld target(WithOwners(random, spec), draw());
      ExpectRestored(reader, saved, target, static_cast<int>(random.Integer(1, kMostRanks)));
    }
    if (HasFatalFailure()) return;
  }
}

// Returns a spec with several chunks of every kind of array, whose rows are no whole blocks of scales.
ModelSpec SpecOfChunks() {
  ModelSpec spec{.name = "chunks"};
  spec.units.push_back({.name = "unit"});
  auto& parameters = spec.units[0].parameters;
  const auto add = [&](std::string name, Format format, std::vector<int64_t> shape) -> ParameterSpec& {
    parameters.push_back(MakeParameter(std::move(name), std::move(shape), format));
    return parameters.back();
  };
  ParameterSpec& trained = add("trained", Format::kBF16, {3, 700, 1033});
  trained.master_type = MasterType::kBF16Remainder;
  trained.exp_avg_type = MomentType::kFP8;
  trained.exp_avg_sq_type = MomentType::kFP16;
  for (const Format format : {Format::kMXFP8, Format::kNVFP4_2D, Format::kFP8Block128x128}) {
    add(absl::StrCat("frozen ", FormatName(format)), format, {4700, 2033}).trainable = false;
  }
  return checkpoint::Checked(spec);
}

TEST_F(ReshardTest, ChunksEndAnywhereInBlocks) {
  const SavedModel saved(SpecOfChunks(), 5);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {2, 2}), {}));
  for (const World& world : {World{1, 1}, World{3, 3}, World{4, 2}}) {
    ExpectRestored(reader, saved, ShardWorld(saved.spec(), world), 2);
  }
}

}  // namespace
}  // namespace paramshard::server
