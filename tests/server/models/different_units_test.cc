// Ranks that run different units: random epochs, compared with a world in which every rank makes the same pushes, and is
// without all gradients of those that it does not have.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/effort.h"
#include "tests/support/random_seed.h"

namespace paramshard::server {
namespace {

constexpr int kUnits = 5;
constexpr int kSlots = 2;

struct Case {
  int ranks = 2;
  v1::GradientSums sums = v1::GRADIENT_SUMS_AT_PUSH;
  v1::GradientType accumulators = v1::GRADIENT_TYPE_FP32;
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.ranks, "Ranks", info.param.sums == v1::GRADIENT_SUMS_AT_PUSH ? "AtPush" : "AtCommit",
                      info.param.accumulators == v1::GRADIENT_TYPE_FP32 ? "FP32" : "BF16");
}

// A push of one rank.
struct Pushed {
  int unit = 0;
  int ordinal = 0;  // of the unit, in the step
  std::vector<int> absent;
  uint32_t seed = 0;  // of its gradients
};
// Pushes of the ranks in a step, each in its own order.
struct Step {
  std::vector<std::vector<Pushed>> pushes;  // by rank
  bool discards = false;
};

class DifferentUnitsTest : public testing::TestWithParam<Case> {
 protected:
  DifferentUnitsTest() {
    for (Daemons* const world : {&daemons_, &reference_}) {
      world->Create(Spec());
      world->Attach();
    }
  }

  static v1::ModelSpec Spec() {
    v1::ModelSpec spec = MakeSpec(
        "m", {MakeUnit("trunk", {MakeParameter("trunk.w", {40, 32}), MakeParameter("trunk.b", {7})}),
              MakeUnit("a", {MakeParameter("a.w", {37, 33}), MakeParameter("a.b", {33})}),
              MakeUnit("b", {MakeParameter("b.w", {5, 16}, v1::FORMAT_BF16)}),
              MakeUnit("owned", {Owned(MakeParameter("owned.w", {3, 16, 24})), MakeParameter("owned.b", {40})}),
              MakeUnit("c", {MakeParameter("c.w", {40, 32}, v1::FORMAT_MXFP8)})});
    spec.set_small_parameter_bytes(200);
    spec.set_gather_slots(2);
    spec.set_gradient_slots(kSlots);
    spec.set_gradient_sums(GetParam().sums);
    spec.set_accumulator_type(GetParam().accumulators);
    return spec;
  }

  Step RandomStep(std::mt19937& random, bool may_discard) {
    Step step{.pushes = std::vector<std::vector<Pushed>>(GetParam().ranks),
              .discards = may_discard && random() % 5 == 0};
    const bool takes_one = GetParam().accumulators == v1::GRADIENT_TYPE_BF16;
    for (std::vector<Pushed>& pushes : step.pushes) {
      std::vector<int> units;
      for (int unit = 0; unit < kUnits; ++unit) {
        // Now and then a rank runs nothing.
        const int times = unit == 0 && random() % 4 != 0 ? 1 : static_cast<int>(random() % (takes_one ? 2 : 4));
        units.insert(units.end(), times, unit);
      }
      std::shuffle(units.begin(), units.end(), random);
      std::map<int, int> ordinals;
      for (const int unit : units) {
        Pushed pushed{.unit = unit, .ordinal = ordinals[unit]++, .seed = static_cast<uint32_t>(random())};
        for (int i = 0; i < static_cast<int>(spec().units[unit].parameters.size()); ++i) {
          if (random() % 6 == 0) pushed.absent.push_back(i);
        }
        pushes.push_back(std::move(pushed));
      }
    }
    return step;
  }

  const ModelSpec& spec() { return daemons_.model(0).spec(); }
  const Layout& layout() { return daemons_.model(0).layout(); }

  // Fills a slot with gradients of all magnitudes, so that the order of additions shows, and sends the push as the
  // client library does.
  int64_t Push(FakeTrainer& trainer, int slot, const Pushed& pushed) {
    const auto count = static_cast<int64_t>(layout().units()[pushed.unit].gradient_bytes / sizeof(float));
    auto* const gradients = reinterpret_cast<float*>(trainer.gradient_slot(slot));
    std::mt19937 random(pushed.seed);
    for (int64_t i = 0; i < count; ++i) {
      gradients[i] =
          std::ldexp(static_cast<float>(random() % 262143) - 131071.0f, static_cast<int>(random() % 24) - 20);
    }
    v1::Command command = PushCommand(trainer.next_command(), pushed.unit, slot, pushed.absent);
    if (GetParam().sums == v1::GRADIENT_SUMS_AT_COMMIT && pushed.ordinal == 0) {
      command.mutable_push()->set_own_slices_landed(true);
      uint8_t* const slots = trainer.slot(0) - layout().slot_offsets()[0];
      for (const PieceCopy& piece : layout().LandingCopies(pushed.unit, trainer.rank(), slot, pushed.absent)) {
        std::copy_n(slots + piece.source, piece.bytes, slots + piece.target);
      }
    }
    trainer.Fill(slot, command.number());
    return trainer.Send(command);
  }

  // One rank's part of a step: gathers of its own between its pushes, which wait for no other rank's.
  void Run(FakeTrainer& trainer, const std::vector<Pushed>& pushes, std::vector<int64_t>& last_pushes, uint32_t seed) {
    std::mt19937 random(seed);
    int next_slot = static_cast<int>(random() % kSlots);
    for (const Pushed& pushed : pushes) {
      if (random() % 2 == 0) {
        const int slot = static_cast<int>(random() % 2);
        const int64_t number = trainer.Gather(pushed.unit, slot);
        ASSERT_TRUE(trainer.AwaitReady(slot, number));
        EXPECT_TRUE(trainer.HoldsPlanes(pushed.unit, slot));
        trainer.Release(slot, number);
      }
      if (random() % 3 == 0) std::this_thread::yield();
      const int slot = next_slot++ % kSlots;
      ASSERT_TRUE(trainer.AwaitDrained(slot, last_pushes[slot])) << "rank " << trainer.rank();
      last_pushes[slot] = Push(trainer, slot, pushed);
    }
  }

  // The same in the other world: pushes that some rank makes, by all ranks together.
  void RunReference(const Step& step) {
    std::map<std::pair<int, int>, std::vector<const Pushed*>> pushes;  // by unit and ordinal: of the ranks
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      for (const Pushed& pushed : step.pushes[rank]) {
        auto& of_ranks = pushes[{pushed.ordinal, pushed.unit}];
        of_ranks.resize(GetParam().ranks);
        of_ranks[rank] = &pushed;
      }
    }
    for (const auto& [key, of_ranks] : pushes) {
      const auto [ordinal, unit] = key;
      std::vector<int> all(spec().units[unit].parameters.size());
      for (int i = 0; i < static_cast<int>(all.size()); ++i) all[i] = i;
      int64_t number = 0;
      for (int rank = 0; rank < GetParam().ranks; ++rank) {
        const Pushed absent{.unit = unit, .ordinal = ordinal, .absent = all};
        number = Push(reference_.trainer(rank), 0, of_ranks[rank] == nullptr ? absent : *of_ranks[rank]);
      }
      for (int rank = 0; rank < GetParam().ranks; ++rank) {
        ASSERT_TRUE(reference_.trainer(rank).AwaitDrained(0, number));
      }
    }
  }

  void RunStep(const Step& step, std::mt19937& random) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      threads.emplace_back([&, rank, seed = static_cast<uint32_t>(random())] {
        Run(daemons_.trainer(rank), step.pushes[rank], last_pushes_[rank], seed);
        // It comes to the end of the step, whatever others do.
        if (step.discards) daemons_.trainer(rank).Discard();
      });
    }
    for (std::thread& thread : threads) thread.join();
    RunReference(step);
    if (step.discards) reference_.Discard();
  }

  void ExpectSameCommit() {
    const auto clip = [](v1::Commit& commit) { commit.set_max_grad_norm(1e-3f); };
    const wire::CommitRecord answer = daemons_.Commit(clip);
    const wire::CommitRecord expected = reference_.Commit(clip);
    EXPECT_EQ(answer.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(daemons_.Hashes(), reference_.Hashes());
  }

  Daemons daemons_{{GetParam().ranks}};
  Daemons reference_{{GetParam().ranks}};
  std::vector<std::vector<int64_t>> last_pushes_ =
      std::vector<std::vector<int64_t>>(GetParam().ranks, std::vector<int64_t>(kSlots));  // by rank and slot
};

INSTANTIATE_TEST_SUITE_P(
    Worlds, DifferentUnitsTest,
    testing::Values(Case{.ranks = 2}, Case{.ranks = 3}, Case{.ranks = 3, .sums = v1::GRADIENT_SUMS_AT_COMMIT},
                    Case{.ranks = 2, .accumulators = v1::GRADIENT_TYPE_BF16},
                    Case{.ranks = 3, .sums = v1::GRADIENT_SUMS_AT_COMMIT, .accumulators = v1::GRADIENT_TYPE_BF16}),
    CaseName);

TEST_P(DifferentUnitsTest, RandomStepsGiveTheBytesOfOneOrder) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (int i = 0; i < Rounds(12) && !HasFailure(); ++i) {
    const Step step = RandomStep(random, /*may_discard=*/true);
    RunStep(step, random);
    if (!step.discards) ExpectSameCommit();
  }
}

// The trainers of other ranks stay; what was landed for the step that is lost is in no sum.
TEST_P(DifferentUnitsTest, AStepThatADeathEndsIsDoneAgain) {
  std::mt19937 random(7);
  const Step first = RandomStep(random, /*may_discard=*/false);
  RunStep(first, random);
  ExpectSameCommit();
  const Step second = RandomStep(random, /*may_discard=*/false);
  RunStep(second, random);
  daemons_.Kill(GetParam().ranks - 1);
  daemons_.Attach();
  for (std::vector<int64_t>& slots : last_pushes_) slots.assign(kSlots, 0);
  RunStep({.pushes = std::vector<std::vector<Pushed>>(GetParam().ranks), .discards = true}, random);
  RunStep(second, random);
  ExpectSameCommit();
}

// One rank alone pushes, more than it has slots for: it does not wait for the others.
TEST_P(DifferentUnitsTest, ARankPushesMoreUnitsThanItHasSlotsWhileOthersAreStill) {
  Step step{.pushes = std::vector<std::vector<Pushed>>(GetParam().ranks)};
  for (int unit = 0; unit < kUnits; ++unit)
    step.pushes[1].push_back({.unit = unit, .seed = static_cast<uint32_t>(unit)});
  std::mt19937 random(3);
  Run(daemons_.trainer(1), step.pushes[1], last_pushes_[1], 1);
  for (int slot = 0; slot < kSlots; ++slot) {
    EXPECT_TRUE(daemons_.trainer(1).AwaitDrained(slot, last_pushes_[1][slot])) << "before any other rank commits";
  }
  RunReference(step);
  ExpectSameCommit();
}

}  // namespace
}  // namespace paramshard::server
