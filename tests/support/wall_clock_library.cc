// A library that a daemon is started with (LD_PRELOAD): its wall clock differs from the machine's by as many seconds as
// the file holds that SteppedClock::kVariable names.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "tests/support/stepped_clock.h"

namespace {

const std::atomic<int64_t> none{0};
// Set when the library is loaded: sanitizers, which stand before the C library too, ask for the time before that, where
// a variable of a function could not be initialized yet.
constinit const std::atomic<int64_t>* offset_seconds = &none;

[[gnu::constructor]] void MapOffset() {
  const char* const path = std::getenv(paramshard::test::SteppedClock::kVariable);
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* const memory = mmap(nullptr, sizeof(none), PROT_READ, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (memory != MAP_FAILED) offset_seconds = static_cast<const std::atomic<int64_t>*>(memory);
}

}  // namespace

// Comes before the C library's own, for the program and all libraries that it loads.
extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += offset_seconds->load();
  return result;
}
