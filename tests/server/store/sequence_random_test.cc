// The contracts of a step (docs/architecture.md), checked after every event of random epochs.

#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/model/layout.h"
#include "tests/random_seed.h"
#include "tests/server/store/simulated_epoch.h"
#include "tests/server/store/test_spec.h"

namespace paramshard::server {
namespace {

constexpr int kMaxRanks = 6;
constexpr int kMaxEvents = 100'000;

ModelSpec SimulatedSpec() {
  v1::ModelSpec spec = MakeSpec(
      "m", {MakeUnit("a", {MakeParameter("a.w", {8, 4}), MakeParameter("a.b", {8})}),
            MakeUnit("b", {MakeParameter("b.w", {8, 4})}), MakeUnit("big", {MakeParameter("big.w", {256, 64})}),
            MakeUnit("kept", {MakeParameter("kept.w", {8, 4})})});
  spec.mutable_units(3)->set_reshard_after_forward(false);
  spec.set_gather_slots(2);
  spec.set_gradient_slots(2);
  return Parse(spec);
}

class SequenceRandomTest : public testing::Test {
 protected:
  SequenceRandomTest() {
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks) layouts_.emplace_back(spec_, ranks);
  }

  // Calls `play(epoch)` for many small worlds. Failures name the seed of theirs.
  template <typename Play>
  void ForEachEpoch(int count, Play play) {
    const uint64_t first = FirstSeed(1);
    for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
      std::mt19937_64 random(seed);
      const int ranks = 1 + static_cast<int>(random() % (random() % 2 == 0 ? 3 : kMaxRanks));
      const SimulationSize size{.ranks = ranks,
                                .commands = 1 + static_cast<int>(random() % (random() % 8 == 0 ? 60 : 14)),
                                .first_rank = static_cast<int>(random() % 3) * ranks};
      SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed, ", ", ranks, " ranks, ", size.commands, " commands"));
      RecordProperty("seed", absl::StrCat(seed));
      SimulatedEpoch epoch(&spec_, &layouts_[ranks - 1], size, static_cast<int64_t>(random() % 5), &random);
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

  const ModelSpec spec_ = SimulatedSpec();
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
    SimulatedEpoch next(&spec_, &layouts_[size.ranks - 1], size, epoch.commit_number(), &random);
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

}  // namespace
}  // namespace paramshard::server
