// Sets the wall clock of this process only, like an administrator who sets the machine's clock.
#ifndef PARAMSHARD_TESTS_SUPPORT_WALL_CLOCK_H_
#define PARAMSHARD_TESTS_SUPPORT_WALL_CLOCK_H_

#include "absl/time/time.h"

namespace paramshard::test {

// Until this object ends, absl::Now() and std::chrono::system_clock differ from the machine's by the sum of the steps.
// The steady clock is unchanged. Any thread may step. One object at a time.
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
