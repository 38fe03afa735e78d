// The contract of Collectives, for every engine and shape of world.
#include "server/data_plane/collectives.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/data_plane/scratch_memory.h"
#include "server/data_plane/tcp_mesh.h"
#include "tests/server/data_plane/engine_world.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kMixed = 0;
constexpr int kPlain = 3;

void Ignore(int, int) {}

std::vector<Phase> PhasesOf(const ModelSpec& model, int unit) {
  if (!model.units[unit].reshard_after_forward) return {Phase::kForward, Phase::kBackward, Phase::kBoth};
  return {Phase::kForward, Phase::kBackward};
}

int SlotOf(const EngineWorld& world, int unit) {
  // Units of the ring share its last slot: it is the largest.
  return world.layout().units()[unit].resident_slot.value_or(world.model().gather_slots - 1);
}

int GradientSlotOf(const EngineWorld& world) { return world.model().gradient_slots - 1; }

// On GPUs a world is skipped when there are too few of them, or no NCCL; on cpu devices nothing excuses an error.
bool MayBeSkipped(const EngineWorld& world, const absl::Status& connected) {
  return world.shape().devices == "cuda" && (absl::IsFailedPrecondition(connected) || absl::IsUnimplemented(connected));
}

#define CONNECT_OR_SKIP(world)                                     \
  do {                                                             \
    const absl::Status connected = (world).Connect();              \
    if (MayBeSkipped(world, connected)) GTEST_SKIP() << connected; \
    ASSERT_THAT(connected, IsOk());                                \
  } while (false)

class CollectivesTest : public ::testing::TestWithParam<WorldShape> {
 protected:
  void SetUp() override { CONNECT_OR_SKIP(world_); }

  // Two pushes of every unit into accumulators of this type. `absent`: parameters without a gradient, by push and rank.
  void ExpectSums(GradientType accumulators, std::set<int> (*absent_of)(int push, int rank) = nullptr) {
    world_.set_accumulator_type(accumulators);
    int64_t number = 0;
    for (const bool overwrite : {true, false}) {
      AbsentByRank absent;
      for (int rank = 0; rank < world_.ranks() && absent_of != nullptr; ++rank) {
        absent.push_back(absent_of(overwrite ? 0 : 1, rank));
      }
      for (int unit = 0; unit < static_cast<int>(world_.model().units.size()); ++unit) {
        SCOPED_TRACE(absl::StrCat("unit ", unit, " overwrite ", overwrite));
        const int slot = GradientSlotOf(world_);
        world_.FillGradients(unit, slot, static_cast<uint32_t>(++number));
        std::vector<Accumulators> got(world_.ranks());
        for (int rank = 0; rank < world_.ranks(); ++rank) got[rank] = world_.MakeAccumulators(unit, rank, 77);
        std::vector<Accumulators> expected = got;
        ASSERT_THAT(world_.OnAllRanks([&](int rank) {
          return world_.Reduce(number, unit, slot, rank, overwrite, OfUnit(unit, absent), got[rank]);
        }),
                    Each(IsOk()));
        for (int rank = 0; rank < world_.ranks(); ++rank) {
          world_.ReduceByTheLetter(unit, slot, rank, overwrite, OfUnit(unit, absent), expected[rank]);
          EXPECT_EQ(got[rank], expected[rank]) << "rank " << rank;
        }
      }
    }
  }

  // Returns what is absent without parameters that the unit does not have.
  AbsentByRank OfUnit(int unit, AbsentByRank absent) const {
    const int parameters = static_cast<int>(world_.model().units[unit].parameters.size());
    for (std::set<int>& of_rank : absent) of_rank.erase(of_rank.lower_bound(parameters), of_rank.end());
    return absent;
  }

  EngineWorld world_{GetParam()};
};

TEST_P(CollectivesTest, GatherLandsTheBytesOfEveryPhaseAndNothingElse) {
  int64_t number = 0;
  for (int unit = 0; unit < static_cast<int>(world_.model().units.size()); ++unit) {
    for (const Phase phase : PhasesOf(world_.model(), unit)) {
      const GatherCall call{++number, unit, phase, SlotOf(world_, unit)};
      SCOPED_TRACE(absl::StrCat("unit ", unit, " ", PhaseName(phase)));
      world_.FillArenas(static_cast<uint32_t>(number));
      world_.ClearSlots();
      ASSERT_THAT(world_.OnAllRanks([&](int rank) { return world_.Gather(rank, call, Ignore); }), Each(IsOk()));
      for (int rank = 0; rank < world_.ranks(); ++rank) {
        EXPECT_TRUE(world_.slots(rank) == world_.ExpectedSlots(rank, call, world_.engine(rank).lands_own_pieces()))
            << "rank " << rank;
      }
    }
  }
}

TEST_P(CollectivesTest, AGatherOfOneRankWritesItsSlotAlone) {
  if (world_.engine(0).lands_own_pieces()) GTEST_SKIP() << "all ranks gather together";
  int64_t number = 0;
  for (int unit = 0; unit < static_cast<int>(world_.model().units.size()); ++unit) {
    for (int target = 0; target < world_.layout().ranks(); ++target) {
      const GatherCall call{++number, unit, PhasesOf(world_.model(), unit).back(), SlotOf(world_, unit), target};
      SCOPED_TRACE(absl::StrCat("unit ", unit, " of rank ", target));
      world_.FillArenas(static_cast<uint32_t>(number));
      world_.ClearSlots();
      const std::vector<std::vector<uint8_t>> before = world_.AllSlots();
      ASSERT_THAT(world_.OnAllRanks([&](int rank) {
        return world_.Gather(rank, call, [&](int to, int source) {
          EXPECT_EQ(to, target);
          EXPECT_EQ(source, world_.group_rank(rank));
        });
      }),
                  Each(IsOk()));
      for (int rank = 0; rank < world_.ranks(); ++rank) {
        const bool is_target = world_.group_rank(rank) == target;
        EXPECT_TRUE(world_.slots(rank) == (is_target ? world_.ExpectedSlots(rank, call, false) : before[rank]))
            << "rank " << rank;
      }
    }
  }
}

// Some ranks' gradients, or all.
TEST_P(CollectivesTest, GradientsThatAreLandedAreSummedWithTheSameBits) {
  int64_t number = 0;
  for (int unit = 0; unit < static_cast<int>(world_.model().units.size()); ++unit) {
    for (const int landed : {1, world_.ranks()}) {
      SCOPED_TRACE(absl::StrCat("unit ", unit, ", ", landed, " ranks landed"));
      const int slot = GradientSlotOf(world_);
      world_.FillGradients(unit, slot, static_cast<uint32_t>(++number));
      AbsentByRank absent(world_.ranks());
      absent.back() = {0, 2};
      absent = OfUnit(unit, absent);
      std::vector<Accumulators> got(world_.ranks());
      for (int rank = 0; rank < world_.ranks(); ++rank) got[rank] = world_.MakeAccumulators(unit, rank, 77);
      std::vector<Accumulators> expected = got;
      for (int rank = 0; rank < world_.ranks(); ++rank) {
        world_.ReduceByTheLetter(unit, slot, rank, /*overwrite=*/false, absent, expected[rank]);
        for (int source = landed - 1; source >= 0; --source) {
          const absl::Status status = world_.Land(number, unit, slot, rank, source, absent, /*landed=*/false);
          if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
          ASSERT_OK(status);
        }
        EXPECT_GT(world_.engine(rank).scratch_bytes() + (world_.layout().Slices(unit, rank).empty() ? 1 : 0), 0);
      }
      // The slots are the trainers' again.
      if (landed == world_.ranks()) world_.FillGradients(unit, slot, 4711);
      ASSERT_THAT(world_.OnAllRanks([&](int rank) -> absl::Status {
        ASSIGN_OR_RETURN(const std::vector<Memory> memories, world_.Upload(rank, got[rank]));
        RETURN_IF_ERROR(world_.Push(number, unit, slot, rank, /*overwrite=*/false, absent, /*landed=*/false, memories));
        return world_.Download(rank, memories, got[rank]);
      }),
                  Each(IsOk()));
      for (int rank = 0; rank < world_.ranks(); ++rank) EXPECT_EQ(got[rank], expected[rank]) << "rank " << rank;
    }
  }
}

TEST_P(CollectivesTest, GatherSaysOnceWhichPiecesAreThere) {
  for (const int unit : {kMixed, 1}) {
    absl::Mutex mu;
    std::map<std::tuple<int, int, int>, int> delivered;  // group, rank, source
    const GatherCall call{unit + 1, unit, Phase::kForward, SlotOf(world_, unit)};
    ASSERT_THAT(world_.OnAllRanks([&](int rank) {
      return world_.Gather(rank, call, [&](int target, int source) {
        absl::MutexLock lock(&mu);
        ++delivered[{world_.group_start(rank), target, source}];
      });
    }),
                Each(IsOk()));
    for (int rank = 0; rank < world_.ranks(); ++rank) {
      for (int source = 0; source < world_.layout().ranks(); ++source) {
        const bool own = source == world_.group_rank(rank);
        const int expected = !own || world_.engine(rank).lands_own_pieces() ? 1 : 0;
        EXPECT_EQ((delivered[{world_.group_start(rank), world_.group_rank(rank), source}]), expected)
            << "rank " << rank << " source " << source;
      }
    }
  }
}

TEST_P(CollectivesTest, AGatherMayBeginBeforeTheLastOneIsDone) {
  constexpr int kResident = 2;  // has a slot of its own
  ASSERT_TRUE(world_.layout().units()[kResident].resident_slot.has_value());
  const GatherCall first{1, kMixed, Phase::kForward, SlotOf(world_, kMixed)};
  const GatherCall second{2, kResident, Phase::kBoth, SlotOf(world_, kResident)};
  world_.FillArenas(5);
  world_.ClearSlots();
  const auto finish = [&](int rank, const GatherCall& call) -> absl::Status {
    absl::StatusOr<bool> done = false;
    while (done.ok() && !*done) done = world_.engine(rank).GatherDone(call, Ignore);
    return done.status();
  };
  ASSERT_THAT(world_.OnAllRanks([&](int rank) {
    absl::Status status = world_.engine(rank).Gather(first, Ignore);
    status.Update(world_.engine(rank).Gather(second, Ignore));
    status.Update(finish(rank, first));
    status.Update(finish(rank, second));
    return status;
  }),
              Each(IsOk()));
  for (int rank = 0; rank < world_.ranks(); ++rank) {
    const bool own = world_.engine(rank).lands_own_pieces();
    std::vector<uint8_t> expected = world_.ExpectedSlots(rank, first, own);
    const std::vector<uint8_t> of_second = world_.ExpectedSlots(rank, second, own);
    const int64_t offset = world_.layout().slot_offsets()[second.slot];
    std::copy_n(of_second.begin() + offset, world_.layout().slot_bytes()[second.slot], expected.begin() + offset);
    EXPECT_TRUE(world_.slots(rank) == expected) << "rank " << rank;
  }
}

TEST_P(CollectivesTest, ReduceSumsInRankOrderThenInNodeOrder) { ExpectSums(GradientType::kFP32); }

// Also where replicas add up: what travels between them is float32.
TEST_P(CollectivesTest, ReduceRoundsASumOnceWhereAccumulatorsAreBF16) { ExpectSums(GradientType::kBF16); }

// Parameters 0 and 2 in the first push, 1 in the second.
std::set<int> AbsentEverywhere(int push, int) { return push == 0 ? std::set<int>{0, 2} : std::set<int>{1}; }

// Different ones on each rank; in worlds of several ranks each parameter is there on some and absent on others. The last
// parameter of a push is absent everywhere.
std::set<int> AbsentHereAndThere(int push, int rank) {
  std::set<int> absent{3};
  for (int parameter = 0; parameter < 3; ++parameter) {
    if ((rank + parameter + push) % 2 == 0) absent.insert(parameter);
  }
  return absent;
}

// All but one rank.
std::set<int> AbsentButOnRankOne(int, int rank) { return rank == 1 ? std::set<int>{2} : std::set<int>{0, 1, 2, 3}; }

// One parameter of one rank.
std::set<int> AbsentOnce(int push, int rank) { return rank == push ? std::set<int>{1} : std::set<int>{}; }

TEST_P(CollectivesTest, ReduceLeavesParametersAloneThatAreAbsentOnAllRanks) {
  ExpectSums(GradientType::kFP32, AbsentEverywhere);
}

TEST_P(CollectivesTest, RanksWithoutAGradientAddNothing) {
  for (const GradientType type : {GradientType::kFP32, GradientType::kBF16}) {
    for (const auto absent : {AbsentHereAndThere, AbsentButOnRankOne, AbsentOnce}) ExpectSums(type, absent);
  }
}

// A zero that was added in the place of an absent gradient would make them positive.
TEST_P(CollectivesTest, ZerosOfTheOnlyRankWithAGradientKeepTheirSign) {
  const int slot = GradientSlotOf(world_);
  const int last = world_.ranks() - 1;
  world_.FillGradients(kMixed, slot, 1, [](std::mt19937&) { return 0x80000000u; });
  AbsentByRank absent(world_.ranks(), {0, 1, 2, 3});
  absent[last].clear();
  std::vector<Accumulators> got(world_.ranks());
  for (int rank = 0; rank < world_.ranks(); ++rank) got[rank] = world_.MakeAccumulators(kMixed, rank, 2);
  ASSERT_THAT(world_.OnAllRanks([&](int rank) {
    return world_.Reduce(1, kMixed, slot, rank, /*overwrite=*/true, absent, got[rank]);
  }),
              Each(IsOk()));
  for (const Accumulators& of_rank : got) {
    for (const std::vector<float>& sums : of_rank) {
      EXPECT_TRUE(std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 0 && std::signbit(sum); }));
    }
  }
}

TEST_P(CollectivesTest, GathersAndReductionsOfOneRankRunAtTheSameTime) {
  constexpr int kRounds = 20;
  const int slot = GradientSlotOf(world_);
  world_.FillArenas(1);
  world_.FillGradients(kPlain, slot, 2);
  const auto gathers = [&](int rank) {
    absl::Status status;
    for (int i = 1; i <= kRounds; ++i) {
      status.Update(world_.Gather(rank, {2 * i, kMixed, Phase::kForward, SlotOf(world_, kMixed)}, Ignore));
    }
    return status;
  };
  const auto reductions = [&](int rank) {
    absl::Status status;
    Accumulators accumulators = world_.MakeAccumulators(kPlain, rank, 3);
    for (int i = 1; i <= kRounds; ++i) {
      status.Update(world_.Reduce(2 * i + 1, kPlain, slot, rank, /*overwrite=*/true, {}, accumulators));
    }
    Accumulators expected = accumulators;
    world_.ReduceByTheLetter(kPlain, slot, rank, /*overwrite=*/true, {}, expected);
    EXPECT_EQ(accumulators, expected);
    return status;
  };
  auto reduced = std::async(std::launch::async, [&] { return world_.OnAllRanks(reductions); });
  EXPECT_THAT(world_.OnAllRanks(gathers), Each(IsOk()));
  EXPECT_THAT(reduced.get(), Each(IsOk()));
}

TEST_P(CollectivesTest, ItsMemoryIsKnownBeforehand) {
  for (int rank = 0; rank < world_.ranks(); ++rank) {
    const Topology topology = world_.TopologyOf(world_.node(rank));
    EXPECT_EQ(world_.engine(rank).scratch_bytes(),
              ScratchBytes(world_.model(), world_.layout(), topology, rank - topology.first_rank(),
                           world_.shape().sums_at_commit))
        << "rank " << rank;
  }
}

// The ranks that are the first of their daemons.
bool IsFirst(const EngineWorld& world, int rank) {
  int first = 0;
  for (int count : world.shape().device_counts) {
    if (rank == first) return true;
    first += count;
  }
  return false;
}

TEST_P(CollectivesTest, MaxOverDaemonsIsTheLargestOfTheDaemons) {
  constexpr int kValues = 5000;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Each daemon has the largest of some; infinity and -1 go through.
  const auto value = [](int node, int i) {
    if (i == 0) return node == 0 ? kInfinity : 1.0f;
    if (i == 1) return -1.0f;
    return static_cast<float>((i * 7 + node * 13) % 101) * 0.37f;
  };
  for (int64_t number : {0, 3, 8}) {
    std::vector<std::vector<float>> values(world_.ranks());
    ASSERT_THAT(world_.OnAllRanks([&](int rank) -> absl::Status {
      if (!IsFirst(world_, rank)) return absl::OkStatus();
      for (int i = 0; i < kValues; ++i) values[rank].push_back(value(world_.node(rank), i));
      return world_.engine(rank).MaxOverDaemons(number, absl::MakeSpan(values[rank]));
    }),
                Each(IsOk()));
    std::vector<float> expected(kValues, -kInfinity);
    for (int node = 0; node < world_.shape().nodes(); ++node) {
      for (int i = 0; i < kValues; ++i) expected[i] = std::max(expected[i], value(node, i));
    }
    for (int rank = 0; rank < world_.ranks(); ++rank) {
      if (IsFirst(world_, rank)) {
        EXPECT_EQ(values[rank], expected) << "rank " << rank;
      }
    }
  }
}

TEST_P(CollectivesTest, ReductionsAndMaximaTakeTurns) {
  const int slot = GradientSlotOf(world_);
  world_.FillGradients(kPlain, slot, 2);
  ASSERT_THAT(world_.OnAllRanks([&](int rank) {
    absl::Status status;
    Accumulators accumulators = world_.MakeAccumulators(kPlain, rank, 3);
    for (int i = 1; i <= 20; ++i) {
      status.Update(world_.Reduce(2 * i, kPlain, slot, rank, /*overwrite=*/true, {}, accumulators));
      std::vector<float> values = {static_cast<float>(i + rank)};
      if (IsFirst(world_, rank)) status.Update(world_.engine(rank).MaxOverDaemons(2 * i + 1, absl::MakeSpan(values)));
    }
    return status;
  }),
              Each(IsOk()));
}

TEST_P(CollectivesTest, StatesMoveBetweenCounterpartsThatHoldReplicas) {
  const WorldShape& shape = world_.shape();
  if (shape.nodes() == 1 || shape.shard_size == world_.ranks()) {
    uint8_t byte = 0;
    EXPECT_THAT(world_.engine(0).SendToReplica(1, absl::MakeConstSpan(&byte, 1), kNever),
                StatusIs(absl::StatusCode::kUnimplemented));
    EXPECT_THAT(world_.engine(0).ReceiveFromReplica(1, absl::MakeSpan(&byte, 1), kNever),
                StatusIs(absl::StatusCode::kUnimplemented));
    return;
  }
  // Each rank of the last node sends to its counterpart on the first node, while the others do nothing.
  const int donor = shape.nodes() - 1;
  for (const size_t size : {size_t{1}, size_t{100'003}}) {
    std::vector<std::vector<uint8_t>> received(world_.ranks());
    ASSERT_THAT(world_.OnAllRanks([&](int rank) -> absl::Status {
      if (world_.node(rank) == donor) {
        const int local = rank - (world_.ranks() - shape.shard_size);
        return world_.engine(rank).SendToReplica(0, std::vector<uint8_t>(size, static_cast<uint8_t>(1 + local)),
                                                 kNever);
      }
      if (world_.node(rank) != 0) return absl::OkStatus();
      received[rank].resize(size);
      return world_.engine(rank).ReceiveFromReplica(donor, absl::MakeSpan(received[rank]), kNever);
    }),
                Each(IsOk()));
    for (int rank = 0; rank < shape.shard_size; ++rank) {
      EXPECT_EQ(received[rank], std::vector<uint8_t>(size, static_cast<uint8_t>(1 + rank)));
    }
  }
}

TEST_P(CollectivesTest, CallsAfterAbortReturnItsStatus) {
  const absl::Status why = absl::AbortedError("rank 7 left");
  for (int rank = 0; rank < world_.ranks(); ++rank) {
    world_.engine(rank).Abort(why);
    world_.engine(rank).Abort(absl::InternalError("later"));
  }
  world_.ClearSlots();
  const std::vector<std::vector<uint8_t>> untouched = world_.AllSlots();
  EXPECT_THAT(world_.OnAllRanks([&](int rank) {
    return world_.Gather(rank, {1, kMixed, Phase::kForward, 0}, Ignore);
  }),
              Each(why));
  EXPECT_THAT(world_.OnAllRanks([&](int rank) {
    Accumulators accumulators = world_.MakeAccumulators(kPlain, rank, 3);
    return world_.Reduce(1, kPlain, 0, rank, true, {}, accumulators);
  }),
              Each(why));
  EXPECT_EQ(world_.AllSlots(), untouched);
  std::vector<float> values = {1};
  EXPECT_EQ(world_.engine(0).MaxOverDaemons(1, absl::MakeSpan(values)), why);
}

std::string ShapeName(const ::testing::TestParamInfo<WorldShape>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Engines, CollectivesTest,
    ::testing::Values(
        WorldShape{"MemcpyOneRank", {1}, 1}, WorldShape{"MemcpyTwoRanks", {2}, 2},
        WorldShape{"MemcpyFourRanks", {4}, 4}, WorldShape{"AcrossTwoByTwo", {2, 2}, 4},
        WorldShape{"AcrossTwoAndOne", {2, 1}, 3}, WorldShape{"AcrossOneEach", {1, 1, 1}, 3},
        WorldShape{"ReplicasTwoByTwo", {2, 2}, 2}, WorldShape{"ReplicasOneEach", {1, 1, 1}, 1},
        WorldShape{"ReplicasThreeByTwo", {2, 2, 2}, 2}, WorldShape{"ReplicasSevenDaemons", {1, 1, 1, 1, 1, 1, 1}, 1},
        WorldShape{.name = "MeshInside", .device_counts = {3}, .shard_size = 3, .mesh_inside = true},
        WorldShape{.name = "MeshInsideReplicasTwoByTwo", .device_counts = {2, 2}, .shard_size = 2, .mesh_inside = true},
        WorldShape{.name = "AtCommitOneRank", .device_counts = {1}, .shard_size = 1, .sums_at_commit = true},
        WorldShape{.name = "AtCommitTwoRanks", .device_counts = {2}, .shard_size = 2, .sums_at_commit = true},
        WorldShape{.name = "AtCommitFourRanks", .device_counts = {4}, .shard_size = 4, .sums_at_commit = true}),
    ShapeName);

// Sums that wait for the commit.
class SumsAtCommitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CONNECT_OR_SKIP(world_);
    for (int rank = 0; rank < world_.ranks(); ++rank) {
      expected_.push_back(world_.MakeAccumulators(kMixed, rank, 8));
      absl::StatusOr<std::vector<Memory>> memories = world_.Upload(rank, expected_[rank]);
      ASSERT_THAT(memories.status(), IsOk());
      accumulators_.push_back(*std::move(memories));
    }
  }

  // The unit `mixed` from fresh gradients; nobody sums before all have pushed. `kept`: engines keep all ranks' gradients.
  void Push(bool overwrite, bool landed, const AbsentByRank& absent = {}, bool kept = false) {
    const int slot = GradientSlotOf(world_);
    world_.FillGradients(kMixed, slot, static_cast<uint32_t>(++number_));
    for (int rank = 0; rank < world_.ranks() && landed; ++rank) world_.LandOwnGradients(kMixed, slot, rank, absent);
    for (int rank = 0; rank < world_.ranks(); ++rank) {
      world_.ReduceByTheLetter(kMixed, slot, rank, overwrite, absent, expected_[rank]);
      for (int source = 0; source < world_.ranks() && kept; ++source) {
        ASSERT_OK(world_.Land(number_, kMixed, slot, rank, source, absent, landed));
      }
    }
    if (kept) world_.FillGradients(kMixed, slot, 815);
    ASSERT_THAT(world_.OnAllRanks([&](int rank) {
      return world_.Push(number_, kMixed, slot, rank, overwrite, absent, landed, accumulators_[rank]);
    }),
                Each(IsOk()));
    world_.FillGradients(kMixed, slot, 4711);  // the slot is the trainer's again
  }

  void ExpectSums() {
    ASSERT_THAT(world_.OnAllRanks([&](int rank) { return world_.SumLeft(rank); }), Each(IsOk()));
    for (int rank = 0; rank < world_.ranks(); ++rank) {
      Accumulators got = expected_[rank];
      ASSERT_THAT(world_.Download(rank, accumulators_[rank], got), IsOk());
      EXPECT_EQ(got, expected_[rank]) << "rank " << rank;
    }
  }

  EngineWorld world_{{.name = "AtCommit", .device_counts = {3}, .shard_size = 3, .sums_at_commit = true}};
  int64_t number_ = 0;
  std::vector<Accumulators> expected_;
  std::vector<std::vector<Memory>> accumulators_;  // on the devices
};

TEST_F(SumsAtCommitTest, WhatAPushHasLeftIsSummedByTheCommit) {
  std::vector<Accumulators> before = expected_;
  Push(/*overwrite=*/true, /*landed=*/true);
  for (int rank = 0; rank < world_.ranks(); ++rank) {
    Accumulators got = before[rank];
    ASSERT_THAT(world_.Download(rank, accumulators_[rank], got), IsOk());
    EXPECT_EQ(got, before[rank]) << "rank " << rank;
  }
  ExpectSums();
  Push(/*overwrite=*/true, /*landed=*/true);
  ExpectSums();
}

TEST_F(SumsAtCommitTest, LaterPushesOfAUnitAreAddedInTheirOrder) {
  Push(/*overwrite=*/true, /*landed=*/true);
  Push(/*overwrite=*/false, /*landed=*/false);
  Push(/*overwrite=*/false, /*landed=*/false, /*absent=*/{{0}, {0}, {0}});
  ExpectSums();
}

TEST_F(SumsAtCommitTest, ParametersThatAreAbsentOnAllRanksStayAsTheyAre) {
  Push(/*overwrite=*/true, /*landed=*/true, /*absent=*/{{0, 3}, {0, 3}, {0, 3}});
  ExpectSums();
}

TEST_F(SumsAtCommitTest, RanksWithoutAGradientAddNothingToWhatIsLeft) {
  Push(/*overwrite=*/true, /*landed=*/true, /*absent=*/{{0, 3}, {1, 2, 3}, {0, 3}});
  Push(/*overwrite=*/false, /*landed=*/false, /*absent=*/{{1}, {}, {0, 1, 2}});
  ExpectSums();
  Push(/*overwrite=*/true, /*landed=*/true, /*absent=*/{{}, {0, 1, 2, 3}, {2}});
  ExpectSums();
}

TEST_F(SumsAtCommitTest, GradientsThatEnginesKeepAreSummedWithTheSameBits) {
  for (int step = 0; step < 3; ++step) {
    Push(/*overwrite=*/true, /*landed=*/true, /*absent=*/{{0}, {}, {1, 2}}, /*kept=*/true);
    Push(/*overwrite=*/false, /*landed=*/false, /*absent=*/{}, /*kept=*/step != 1);
    ExpectSums();
    Push(/*overwrite=*/true, /*landed=*/true, /*absent=*/{}, /*kept=*/step != 2);
    ExpectSums();
  }
}

TEST_F(SumsAtCommitTest, SlicesThatLandTwiceAreRefused) {
  Push(/*overwrite=*/true, /*landed=*/true);
  EXPECT_THAT(world_.Push(2, kMixed, 0, 0, false, {}, /*landed=*/true, accumulators_[0]),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("push mixed: want gradients of this rank to land once between")));
}

TEST(SumsAtPushTest, LandedSlicesAreRefused) {
  EngineWorld world({.name = "AtPush", .device_counts = {2}, .shard_size = 2});
  CONNECT_OR_SKIP(world);
  absl::StatusOr<std::vector<Memory>> accumulators = world.Upload(0, world.MakeAccumulators(kPlain, 0, 1));
  ASSERT_THAT(accumulators.status(), IsOk());
  EXPECT_THAT(world.Push(1, kPlain, 0, 0, true, {}, /*landed=*/true, *accumulators),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only where sums wait for the commit")));
}

// Engines between daemons, which wait for each other and compare commands.
class CollectivesBetweenDaemonsTest : public CollectivesTest {};

TEST_P(CollectivesBetweenDaemonsTest, ReduceOfAnotherCommandIsRefusedNamingBoth) {
  std::vector<Accumulators> got(world_.ranks());
  for (int rank = 0; rank < world_.ranks(); ++rank) got[rank] = world_.MakeAccumulators(kPlain, rank, 3);
  const std::vector<Accumulators> before = got;
  // The daemons are at different commands.
  const int second_daemon = world_.shape().device_counts[0];
  EXPECT_THAT(world_.OnAllRanks([&](int rank) {
    return world_.Reduce(rank < second_daemon ? 4 : 5, kPlain, 0, rank, true, {}, got[rank]);
  }),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("command 4 push(plain"), HasSubstr("command 5 push(plain"),
                                  HasSubstr("(node 0)"), HasSubstr("(node 1)")))));
  EXPECT_EQ(got, before);
}

TEST_P(CollectivesBetweenDaemonsTest, MaximaOfAnotherCommandAreRefusedNamingBoth) {
  const int second_daemon = world_.shape().device_counts[0];
  const std::vector<absl::Status> statuses = world_.OnAllRanks([&](int rank) {
    std::vector<float> values = {1, 2};
    if (!IsFirst(world_, rank)) return absl::OkStatus();
    return world_.engine(rank).MaxOverDaemons(rank < second_daemon ? 4 : 5, absl::MakeSpan(values));
  });
  for (int rank = 0; rank < world_.ranks(); ++rank) {
    if (!IsFirst(world_, rank)) continue;
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("command 4"), HasSubstr("command 5"),
                                                                      HasSubstr("(node 0)"), HasSubstr("(node 1)"))));
  }
}

TEST_P(CollectivesBetweenDaemonsTest, ADaemonThatGoesAwayEndsTheMaximumNamingIt) {
  auto waiting = std::async(std::launch::async, [&] {
    std::vector<float> values = {1};
    return world_.engine(0).MaxOverDaemons(1, absl::MakeSpan(values));
  });
  for (int rank = 1; rank < world_.ranks(); ++rank) world_.DestroyEngine(rank);
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank ")));
}

TEST_P(CollectivesBetweenDaemonsTest, ARankThatGoesAwayEndsTheCallNamingIt) {
  auto waiting = std::async(std::launch::async, [&] {
    Accumulators accumulators = world_.MakeAccumulators(kPlain, 0, 3);
    return world_.Reduce(1, kPlain, 0, 0, true, {}, accumulators);
  });
  for (int rank = 1; rank < world_.ranks(); ++rank) world_.DestroyEngine(rank);
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank ")));
}

INSTANTIATE_TEST_SUITE_P(Engines, CollectivesBetweenDaemonsTest,
                         ::testing::Values(WorldShape{"AcrossTwoByTwo", {2, 2}, 4},
                                           WorldShape{"AcrossTwoAndOne", {2, 1}, 3},
                                           WorldShape{"ReplicasTwoByTwo", {2, 2}, 2},
                                           WorldShape{"ReplicasOneEach", {1, 1}, 1}),
                         ShapeName);

// One shard group over all daemons.
const WorldShape kAcross{"Across", {2, 1}, 3};

TEST(MeshCollectivesTest, GatherOfAnotherCommandIsRefusedWithNothingWritten) {
  const GatherCall calls[] = {{3, kMixed, Phase::kForward, 1},
                              {4, kMixed, Phase::kForward, 1},
                              {3, kPlain, Phase::kForward, 1},
                              {3, kMixed, Phase::kBackward, 1},
                              {3, kMixed, Phase::kForward, 2}};
  for (int i = 1; i < 5; ++i) {
    EngineWorld world(kAcross);
    CONNECT_OR_SKIP(world);
    const std::vector<std::vector<uint8_t>> untouched = world.AllSlots();
    int delivered = 0;
    const auto statuses = world.OnAllRanks(
        [&](int rank) { return world.Gather(rank, calls[rank == 2 ? i : 0], [&](int, int) { ++delivered; }); });
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("rank 2 (node 1)"), HasSubstr("(node 0)"),
                                              HasSubstr("command 3 gather(mixed, forward, slot 1)")))));
    EXPECT_EQ(delivered, 0);
    EXPECT_EQ(world.AllSlots(), untouched);
  }
}

TEST(MeshCollectivesTest, AbortEndsAGatherThatWaitsForBytes) {
  EngineWorld world(kAcross);
  CONNECT_OR_SKIP(world);
  const absl::Status why = absl::AbortedError("the epoch ended");
  std::promise<void> agreed, aborted;
  const GatherCall call{1, kMixed, Phase::kForward, SlotOf(world, kMixed)};
  const std::shared_future<void> until_aborted = aborted.get_future().share();
  // All ranks agree on the command; then rank 2 holds its bytes back.
  std::vector<std::future<absl::Status>> results;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    results.push_back(std::async(std::launch::async, [&, rank] {
      return world.Gather(rank, call, [&, rank](int, int source) {
        if (rank == 0 && source == 0) agreed.set_value();
        if (rank == 2 && source == 2) until_aborted.wait();
      });
    }));
  }
  agreed.get_future().wait();
  world.engine(0).Abort(why);
  EXPECT_EQ(results[0].get(), why);
  aborted.set_value();
  // The others learn it from their own daemons; here from the connections.
  world.engine(1).Abort(why);
  world.engine(2).Abort(why);
  EXPECT_THAT(results[1].get(), StatusIs(AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted)));
  EXPECT_FALSE(results[2].get().ok());
}

TEST(MeshCollectivesTest, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  EngineWorld world(kAcross, kShortTimeout);
  CONNECT_OR_SKIP(world);
  std::vector<absl::Status> statuses = world.OnAllRanks([&](int rank) {
    return rank == 1 ? absl::OkStatus() : world.Gather(rank, {9, kMixed, Phase::kForward, 0}, Ignore);
  });
  EXPECT_THAT(statuses[0], StatusIs(AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable),
                                    HasSubstr("command 9 gather(mixed, forward, slot 0): ")));
  // The first to give up names the rank; the other may see that one's connection close.
  EXPECT_TRUE(absl::StrContains(statuses[0].message(), "rank 1 (node 0) timed out") ||
              absl::StrContains(statuses[2].message(), "rank 1 (node 0) timed out"))
      << statuses[0] << statuses[2];
}

TEST(MeshCollectivesTest, ARankWhoseBytesDoNotComeIsNamedAtTheDeadline) {
  EngineWorld world(kAcross, kShortTimeout);
  CONNECT_OR_SKIP(world);
  const GatherCall call{1, kMixed, Phase::kForward, SlotOf(world, kMixed)};
  std::promise<void> others_returned;
  const std::shared_future<void> until_others_returned = others_returned.get_future().share();
  std::vector<std::future<absl::Status>> results;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    results.push_back(std::async(std::launch::async, [&, rank] {
      return world.Gather(rank, call, [&, rank](int, int source) {
        if (rank == 2 && source == 2) until_others_returned.wait();
      });
    }));
  }
  const absl::Status statuses[] = {results[0].get(), results[1].get()};
  others_returned.set_value();
  EXPECT_FALSE(results[2].get().ok());
  EXPECT_THAT(statuses, Each(StatusIs(AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable),
                                      HasSubstr("command 1 gather(mixed, forward, slot"))));
  // The first to give up names the rank; the other may see that one's connection close.
  EXPECT_THAT(statuses, Contains(StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 (node 1)"))));
}

TEST(MeshCollectivesTest, ADaemonWhoseAmaxesDoNotComeIsNamedAtTheDeadline) {
  EngineWorld world(kAcross, kShortTimeout);
  CONNECT_OR_SKIP(world);
  std::vector<float> values = {1};
  const absl::Status status = world.engine(0).MaxOverDaemons(9, absl::MakeSpan(values));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("commit, command 9"), HasSubstr("rank 2 (node 1) timed out"))));
  EXPECT_EQ(world.engine(0).MaxOverDaemons(10, absl::MakeSpan(values)), status) << "the first error stays";
}

TEST(MeshCollectivesTest, TheFirstErrorStays) {
  EngineWorld world(kAcross, kShortTimeout);
  CONNECT_OR_SKIP(world);
  const absl::Status first = world.Gather(0, {1, kMixed, Phase::kForward, 0}, Ignore);
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(world.Gather(0, {2, kMixed, Phase::kForward, 1}, Ignore), first);
}

TEST(ConnectEnginesTest, ANodeThatDoesNotComeIsNamedWithinTheTimeout) {
  for (const int shard_size : {2, 4}) {
    EngineWorld world({"Missing", {2, 2}, shard_size, "cpu"}, absl::Milliseconds(300));
    EXPECT_THAT(
        world.ConnectNode(0).status(),
        StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("connect engines of test"), HasSubstr("node 1"))));
  }
}

TEST(ConnectEnginesTest, AnAbortBeforehandEndsConnecting) {
  EngineWorld world({"Aborted", {1, 1}, 2, "cpu"});
  ConnectAbort abort;
  abort.Abort(absl::AbortedError("enough"));
  EXPECT_THAT(world.ConnectNode(0, &abort).status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

// The timeout, a minute, would end it with another error.
TEST(ConnectEnginesTest, AnAbortEndsAWaitForAnotherNode) {
  EngineWorld world({"Aborted", {1, 1}, 2, "cpu"});
  ConnectAbort abort;
  auto connecting = std::async(std::launch::async, [&] { return world.ConnectNode(0, &abort).status(); });
  // Node 0 has published its addresses, and now waits for the addresses of node 1.
  EXPECT_OK(world.rendezvous().AwaitParts(0, "meshes", absl::Minutes(1)));
  abort.Abort(absl::AbortedError("enough"));
  EXPECT_THAT(connecting.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

TEST(ConnectEnginesTest, ANodeThatDiesWhileConnectingEndsTheOther) {
  EngineWorld world({"Dying", {1, 1}, 2, "cpu"}, absl::Milliseconds(500));
  // Node 1 publishes addresses, does not find node 0 in time, and closes.
  ASSERT_FALSE(world.ConnectNode(1).ok());
  EXPECT_THAT(world.ConnectNode(0).status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 (node 1)")));
}

TEST(MakeTcpDeviceTest, OnlyAnAddressOfThisHostWillDo) {
  EXPECT_OK(MakeTcpDevice("127.0.0.1"));
  EXPECT_THAT(MakeTcpDevice("192.0.2.1"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1")));
  EXPECT_THAT(MakeTcpDevice("no.such.host.invalid"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no.such.host.invalid")));
}

}  // namespace
}  // namespace paramshard::server
