// Sums of gradients over daemons that hold replicas.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data_plane/memcpy_collectives.h"
#include "server/data_plane/replicated_collectives.h"
#include "server/data_plane/scratch_memory.h"
#include "tests/server/data_plane/counting_mesh.h"
#include "tests/server/data_plane/engine_world.h"
#include "tests/server/data_plane/held_mesh.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::Each;

constexpr int kMixed = 0;
constexpr int kLonely = 1;
constexpr int kPlain = 3;

// Every float there is: NaN of any sign and payload, infinities, zeros of both signs, subnormal numbers.
uint32_t AnyBits(std::mt19937& random) {
  const uint32_t bits = static_cast<uint32_t>(random());
  switch (random() % 16) {
    case 0:
      return bits | 0x7f800000u;  // NaN, or an infinity
    case 1:
      return bits & 0x80000000u;  // zero
    case 2:
      return (bits & 0x80000000u) | 0x7f800000u;
    case 3:
      return bits & 0x807fffffu;  // subnormal
    default:
      // Magnitudes that meet each other, so that the order of additions shows.
      return (bits & 0x807fffffu) | ((100 + random() % 56) << 23);
  }
}

// Every NaN is one: accumulators store it as 0x7fc00000, or as 0x7fff, whatever its sign and payload.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> all;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    all.push_back(std::isnan(value) ? 0x7fc00000u : bits);
  }
  return all;
}

class ReplicaSumsTest : public testing::TestWithParam<int> {
 protected:
  static WorldShape Shape() {
    return {.name = "Replicas", .device_counts = std::vector<int>(GetParam(), 1), .shard_size = 1, .devices = "cpu"};
  }
};

INSTANTIATE_TEST_SUITE_P(Daemons, ReplicaSumsTest, testing::Values(2, 3, 4, 5, 8),
                         [](const auto& info) { return absl::StrCat(info.param); });

// Returns parameters without a gradient for each rank.
AbsentByRank RandomlyAbsent(EngineWorld& world, int unit, std::mt19937& random) {
  AbsentByRank absent(world.ranks());
  for (int parameter = 0; parameter < static_cast<int>(world.model().units[unit].parameters.size()); ++parameter) {
    const uint32_t one_in = 1 + random() % 4;  // 1: on all ranks
    for (std::set<int>& of_rank : absent) {
      if (random() % one_in == 0) of_rank.insert(parameter);
    }
  }
  return absent;
}

// Reductions of every unit of all kinds of floats are what the contract says, bit for bit.
void ExpectSums(EngineWorld& world, GradientType accumulators, bool some_absent = false) {
  world.set_accumulator_type(accumulators);
  uint32_t seed = static_cast<uint32_t>(FirstSeed(std::random_device{}()));
  std::cout << "seed " << seed << std::endl;
  const int slot = world.model().gradient_slots - 1;
  int64_t number = 0;
  for (const bool overwrite : {true, false}) {
    for (int unit = 0; unit < static_cast<int>(world.model().units.size()); ++unit) {
      SCOPED_TRACE(absl::StrCat("unit ", unit, " overwrite ", overwrite));
      world.FillGradients(unit, slot, ++seed, AnyBits);
      std::vector<Accumulators> got;
      ++seed;
      for (int rank = 0; rank < world.ranks(); ++rank) got.push_back(world.MakeAccumulators(unit, rank, seed));
      const std::vector<Accumulators> before = got;
      std::mt19937 random(seed);
      const AbsentByRank absent = some_absent ? RandomlyAbsent(world, unit, random) : AbsentByRank();
      ++number;
      ASSERT_THAT(world.OnAllRanks(
                      [&](int rank) { return world.Reduce(number, unit, slot, rank, overwrite, absent, got[rank]); }),
                  Each(IsOk()));
      for (int rank = 0; rank < world.ranks(); ++rank) {
        Accumulators expected = before[rank];
        world.ReduceByTheLetter(unit, slot, rank, overwrite, absent, expected);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(BitsOf(got[rank][i]), BitsOf(expected[i])) << "rank " << rank << " parameter " << i;
        }
      }
    }
  }
}

// The order: what the first daemon has, plus what the second has, and so on, then added to what was there.
TEST_P(ReplicaSumsTest, AreThoseOfOneDaemonThatAddsAllInNodeOrderBitForBit) {
  EngineWorld world(Shape());
  ASSERT_OK(world.Connect());
  ExpectSums(world, GradientType::kFP32);
}

TEST_P(ReplicaSumsTest, SkipTheDaemonsWithoutAGradientBitForBit) {
  EngineWorld world(Shape());
  ASSERT_OK(world.Connect());
  for (int round = 0; round < 5; ++round) ExpectSums(world, GradientType::kFP32, /*some_absent=*/true);
}

TEST_P(ReplicaSumsTest, BringAtMostTwiceTheElementsAndTakeAsMuchMemory) {
  for (const int unit : {kMixed, kPlain}) {
    for (int self = 0; self < GetParam(); ++self) {
      EngineWorld world(Shape());
      ASSERT_OK(world.Allocate());
      std::vector<MeshMember> members;
      for (int node = 0; node < GetParam(); ++node) members.push_back({node, node});
      absl::Notification never;
      int64_t received_bytes = 0;
      const RankMemory memory = world.memory(self);
      auto local = MemcpyCollectives::Create({&world.model(), &world.layout(), {memory}}, 0, /*sums_at_commit=*/false);
      ASSERT_OK(local.status());
      auto engine = ReplicatedCollectives::Create(
          {&world.model(), &world.layout(), 0, memory.device, absl::Minutes(1)}, *std::move(local),
          std::make_unique<CountingMesh>(std::make_unique<HeldMesh>(members, /*held_exchange=*/0, &never, self),
                                         &received_bytes));
      ASSERT_OK(engine.status());
      world.SetEngine(self, *std::move(engine));
      Accumulators accumulators = world.MakeAccumulators(unit, self, 3);
      ASSERT_OK(world.Reduce(1, unit, 0, self, true, {}, accumulators));
      const int64_t bytes = PartialElements(world.layout(), 0, unit) * 4;
      EXPECT_LE(received_bytes * 10, bytes * 21) << "unit " << unit << " node " << self;
      EXPECT_GE(received_bytes, bytes) << "a half of it where there are two";
      const int64_t largest = LargestPartialElements(world.model(), world.layout(), 0) * 4;
      EXPECT_LE(world.engine(self).scratch_bytes() * 10, largest * 21);
    }
  }
}

// Fewer elements than daemons: some own nothing.
TEST(ManyReplicasTest, OneElementIsSummedByOneDaemon) {
  EngineWorld world({.name = "Replicas", .device_counts = {1, 1, 1, 1}, .shard_size = 1, .devices = "cpu"});
  ASSERT_OK(world.Connect());
  world.FillGradients(kLonely, 0, 1);
  std::vector<Accumulators> got(4, world.MakeAccumulators(kLonely, 0, 2));
  ASSERT_EQ(PartialElements(world.layout(), 0, kLonely), 1);
  Accumulators expected = got[0];
  ASSERT_THAT(world.OnAllRanks([&](int rank) { return world.Reduce(1, kLonely, 0, rank, true, {}, got[rank]); }),
              Each(IsOk()));
  world.ReduceByTheLetter(kLonely, 0, 0, true, {}, expected);
  EXPECT_THAT(got, Each(expected));
}

// Sums in chains, as on GPUs if more than sixteen hold a part of the model.
class ChainedSumsTest : public testing::TestWithParam<std::tuple<int, GradientType>> {};

INSTANTIATE_TEST_SUITE_P(Groups, ChainedSumsTest,
                         testing::Combine(testing::Values(1, 5),
                                          testing::Values(GradientType::kFP32, GradientType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) == 1 ? "Replicas" : "OneGroup",
                                               std::get<1>(info.param) == GradientType::kFP32 ? "FP32" : "BF16");
                         });

TEST_P(ChainedSumsTest, AreTheSameWhereADeviceAddsFewSourcesAtATime) {
  for (const int most : {1, 2, 4}) {
    EngineWorld world({.name = "Chained",
                       .device_counts = {1, 1, 1, 1, 1},
                       .shard_size = std::get<0>(GetParam()),
                       .devices = "cpu",
                       .most_sum_sources = most});
    ASSERT_OK(world.Connect());
    for (const bool some_absent : {false, true}) ExpectSums(world, std::get<1>(GetParam()), some_absent);
  }
}

TEST(ChainedSumMemoryTest, IsCountedWhereThereAreMoreMembersThanADeviceAdds) {
  const EngineWorld world({.name = "Group", .device_counts = {1, 1, 1}, .shard_size = 3, .devices = "cpu"});
  EXPECT_EQ(ChainedSumBytes(world.model(), world.layout(), 0, 3, 3), 0);
  const int64_t bytes = ChainedSumBytes(world.model(), world.layout(), 0, 3, 2);
  EXPECT_GE(bytes, LargestPartialElements(world.model(), world.layout(), 0) * 4 - 60);
  EXPECT_EQ(bytes % kMeshSliceAlignment, 0);
}

}  // namespace
}  // namespace paramshard::server
