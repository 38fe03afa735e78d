// Cost of the recorder: an event with its reading of the clock, and a whole trace of full rings.

#include <cstdint>

#include "benchmark/benchmark.h"
#include "server/observe/recorder.h"
#include "server/observe/trace.h"

namespace paramshard::server {
namespace {

Event NumberedEvent(int64_t number) {
  return {.kind = EventKind::kPush,
          .edge = number % 2 == 0 ? EventEdge::kBegin : EventEdge::kEnd,
          .unit = static_cast<int>(number % 64),
          .time_ns = TraceNow(),
          .command = number / 2,
          .bytes = number};
}

void WriteEvent(benchmark::State& state) {
  EventRing ring;
  int64_t number = 0;
  for (auto _ : state) ring.Write(NumberedEvent(number++));
}
BENCHMARK(WriteEvent);

void MakeWholeTrace(benchmark::State& state) {
  Recorder recorder(1, 8, 0);
  for (int rank = 0; rank < recorder.ranks(); ++rank) {
    for (int64_t number = 0; number < static_cast<int64_t>(EventRing::kSlots); ++number) {
      recorder.of(rank).commands.Write({.time_ns = TraceNow(), .command = number + 1});
      recorder.of(rank).pushes.Write(NumberedEvent(number));
    }
  }
  for (auto _ : state) benchmark::DoNotOptimize(MakeTrace(recorder, 100, 20'000));
}
BENCHMARK(MakeWholeTrace)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace paramshard::server
