// The contracts of a step (docs/internals/architecture.md), checked after every event of random epochs.

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/layout.h"
#include "gtest/gtest.h"
#include "tests/fuzz/mutator.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/server/training/sequence_fixture.h"
#include "tests/server/training/simulated_epoch.h"
#include "tests/support/effort.h"
#include "tests/support/random_seed.h"

namespace paramshard::server {
namespace {

constexpr int kMaxRanks = 6;
constexpr int kMaxEvents = 100'000;

ModelSpec SimulatedSpec(v1::GradientType accumulators) {
  v1::ModelSpec spec = MakeSpec(
      "m", {MakeUnit("a", {MakeParameter("a.w", {8, 4}), MakeParameter("a.b", {8})}),
            MakeUnit("b", {MakeParameter("b.w", {8, 4})}), MakeUnit("big", {MakeParameter("big.w", {256, 64})}),
            MakeUnit("kept", {MakeParameter("kept.w", {8, 4})})});
  spec.mutable_units(3)->set_reshard_after_forward(false);
  spec.set_gather_slots(2);
  spec.set_gradient_slots(2);
  spec.set_accumulator_type(accumulators);
  if (accumulators == v1::GRADIENT_TYPE_FP32) spec.set_pushes_per_step(2);
  return Parse(spec);
}

class SequenceRandomTest : public testing::Test {
 protected:
  SequenceRandomTest() {
    for (const auto accumulators : {v1::GRADIENT_TYPE_FP32, v1::GRADIENT_TYPE_BF16}) {
      for (int ranks = 1; ranks <= kMaxRanks; ++ranks) layouts_.emplace_back(SimulatedSpec(accumulators), ranks);
    }
  }

  // Calls `play(epoch)` for many small worlds. Failures name the seed of theirs.
  template <typename Play>
  void ForEachEpoch(int count, Play play) {
    const uint64_t first = FirstSeed(1);
    for (uint64_t seed = first; seed < first + static_cast<uint64_t>(Rounds(count)); ++seed) {
      std::mt19937_64 random(seed);
      const int ranks = 1 + static_cast<int>(random() % (random() % 2 == 0 ? 3 : kMaxRanks));
      const SimulationSize size{.ranks = ranks,
                                .commands = 1 + static_cast<int>(random() % (random() % 8 == 0 ? 60 : 14)),
                                .first_rank = static_cast<int>(random() % 3) * ranks,
                                .kind = static_cast<SimulatedCommands>(random() % 2 == 0 ? 0 : random() % 3)};
      SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed, ", ", ranks, " ranks, ", size.commands, " commands"));
      RecordProperty("seed", absl::StrCat(seed));
      const Layout& layout = layouts_[(random() % 2) * kMaxRanks + static_cast<size_t>(ranks) - 1];
      SimulatedEpoch epoch(&layout, size, static_cast<int64_t>(random() % 5), &random);
      play(epoch, random, size);
      if (HasFailure()) return;
    }
  }

  // Lets events happen until none can, or `limit` have.
  void Run(SimulatedEpoch& epoch, int limit = kMaxEvents) {
    int events = 0;
    while (!HasFailure() && events < limit && epoch.Step()) ++events;
    EXPECT_LT(events, kMaxEvents) << "it does not end";
  }

  static int RandomMoment(std::mt19937_64& random, const SimulationSize& size) {
    return static_cast<int>(random() % static_cast<uint64_t>(size.commands * size.ranks * 4));
  }

  // Covers both types of accumulators: BF16 ones take one push of a unit in a step.
  std::vector<Layout> layouts_;
};

TEST_F(SequenceRandomTest, TrainersThatBehaveGetEverythingDone) {
  ForEachEpoch(1500, [&](SimulatedEpoch& epoch, std::mt19937_64&, const SimulationSize&) {
    Run(epoch);
    // A vote that failed has ended it.
    epoch.stopped() ? epoch.ExpectQuiet() : epoch.ExpectComplete();
  });
}

// The next epoch is a new sequence that begins with the commits that were answered.
TEST_F(SequenceRandomTest, AnEndAtAnyMomentLeavesAllRanksEqual) {
  ForEachEpoch(1500, [&](SimulatedEpoch& epoch, std::mt19937_64& random, const SimulationSize& size) {
    Run(epoch, RandomMoment(random, size));
    epoch.Stop();
    Run(epoch);
    epoch.ExpectQuiet();
    SimulatedEpoch next(&epoch.layout(), size, epoch.commit_number(), &random);
    Run(next);
    next.stopped() ? next.ExpectQuiet() : next.ExpectComplete();
  });
}

TEST_F(SequenceRandomTest, ATrainerThatHangsIsNamed) {
  ForEachEpoch(1500, [&](SimulatedEpoch& epoch, std::mt19937_64& random, const SimulationSize& size) {
    if (size.ranks == 1) return;
    Run(epoch, RandomMoment(random, size));
    epoch.Hang(static_cast<int>(random() % static_cast<uint64_t>(size.ranks)));
    Run(epoch);
    epoch.stopped() ? epoch.ExpectQuiet() : epoch.ExpectHungIsNamed();
  });
}

// Commands as another process may write them into its ring: changed in some bytes, or not.
class SequenceRecordTest : public SequenceTest {
 protected:
  static v1::Command RandomCommand(int64_t number, int64_t commit_number, std::mt19937_64& random) {
    switch (random() % 4) {
      case 0:
        return GatherCommand(number, kA, static_cast<int>(random() % 2));
      case 1:
        return PushCommand(number, kB, static_cast<int>(random() % 2));
      case 2:
        return CommitCommand(number, commit_number, "state");
      default:
        return DiscardCommand(number);
    }
  }
  // Everything that the daemon asks of a sequence after a command.
  void Ask() {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_GE(sequence_->Room(rank), 0);
      Serve(rank);
      sequence_->WaitsFor(rank);
    }
    RunnablePushes();
    sequence_->Overdue(now_).IgnoreError();
    sequence_->NextDeadline();
    EXPECT_EQ(sequence_->Answered(sequence_->LastCommitInFlight()), sequence_->LastCommitInFlight() == 0);
  }
};

TEST_F(SequenceRecordTest, RecordsOfAnyBytesAreTakenOrRefused) {
  const uint64_t seed = FirstSeed(1);
  std::mt19937_64 random(seed);
  // A discard, and a commit's number.
  Mutator mutator(seed, {std::string("\x2a\x00", 2), "\x22\x02\x08\x01"});
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    const int rank = static_cast<int>(random() % kRanks);
    std::string record = RandomCommand(sequence_->last_command(rank) + 1, 1, random).SerializeAsString();
    if (random() % 3 == 0) record = mutator.Mutate(std::move(record));
    v1::Command command;
    if (!command.ParseFromString(record)) continue;
    const bool ok = Submit(rank, std::move(command)).ok();
    ++(ok ? taken : refused);
    Ask();
    // The epoch ends with a refusal.
    if (!ok) Restart(0);
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace paramshard::server
