// Sets the wall clock of this process alone, as an administrator sets that of the machine.
#ifndef PARAMSHARD_TESTS_SUPPORT_WALL_CLOCK_H_
#define PARAMSHARD_TESTS_SUPPORT_WALL_CLOCK_H_

#include "absl/time/time.h"

namespace paramshard::test {

// Until this object ends, absl::Now() and std::chrono::system_clock differ from the machine's by the sum of the steps.
// The steady clock goes on as it is. Steps may come from any thread. One at a time.
class WallClock {
 public:
  WallClock() = default;
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;
  ~WallClock();

  // Negative: back.
  void Step(absl::Duration by);
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_WALL_CLOCK_H_
