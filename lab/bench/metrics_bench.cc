// Cost of observations for the threads that make them: docs/train/cost.md, "Metrics".

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/base/check.h"
#include "server/observe/metric_registry.h"
#include "server/training/sequence.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"

namespace paramshard::server {
namespace {

// Threads of all ranks write the same cells.
MetricRegistry& SharedRegistry() {
  static auto* const registry = new MetricRegistry();
  return *registry;
}

void CountOne(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) SharedRegistry().Add(Metric::kCommits, CommitResult::kApplied);
}
BENCHMARK(CountOne)->Threads(1)->Threads(2);

void ObserveOne(benchmark::State& state) {
  const SteadyTime::duration took = std::chrono::microseconds(170);
  for ([[maybe_unused]] auto _ : state) SharedRegistry().Observe(Metric::kGather, took);
}
BENCHMARK(ObserveOne)->Threads(1)->Threads(2);

// With its two looks at the clock.
void TimeOne(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    const MetricTimer timer(SharedRegistry(), Metric::kCommitPhase, CommitPhase::kVote);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(TimeOne)->Threads(1)->Threads(2);

// Words that a gather thread reads in every turn. All ranks wait for the last rank's gradients, and have sent a gather
// that the last rank has not.
class Words final : public TrainerWords {
 public:
  explicit Words(int ranks) : last_(ranks - 1) {}
  uint32_t Released(int, int) const override { return 0; }
  uint32_t Filled(int rank, int) const override { return rank == last_ ? 0 : 1; }

 private:
  const int last_;
};

void FindLateRanks(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const ModelSpec spec = Parse(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {64, 64})})}));
  const Layout layout(spec, ranks);
  const Words words(ranks);
  Sequence sequence({.spec = &spec, .layout = &layout, .ranks = ranks}, &words);
  for (int rank = 0; rank < ranks; ++rank) {
    PARAMSHARD_CHECK(sequence.Submit(rank, PushCommand(1, 0, 0), SteadyTime()).ok());
    if (rank == ranks - 1) continue;
    PARAMSHARD_CHECK(sequence.Submit(rank, GatherCommand(2, 0, 0), SteadyTime()).ok());
  }
  std::vector<char> late(ranks);
  for ([[maybe_unused]] auto _ : state) {
    sequence.FindLateRanks(late);
    benchmark::DoNotOptimize(late.data());
  }
  PARAMSHARD_CHECK(ranks == 1 || late.back());
}
BENCHMARK(FindLateRanks)->Arg(1)->Arg(2)->Arg(8);

}  // namespace
}  // namespace paramshard::server
