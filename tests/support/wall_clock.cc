#include "tests/support/wall_clock.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

namespace {

std::atomic<int64_t> offset_seconds{0};

}  // namespace

// The program's own definition comes before the C library's, for the libraries that it loads too.
extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += offset_seconds.load();
  return result;
}

namespace paramshard::test {

WallClock::~WallClock() { offset_seconds = 0; }

void WallClock::Step(absl::Duration by) { offset_seconds += absl::ToInt64Seconds(by); }

}  // namespace paramshard::test
