// A library that a daemon is started with (LD_PRELOAD): its wall clock differs from the machine's by as many seconds as
// the file holds that SteppedClock::kVariable names. So do the deadlines of absl::CondVar, and with it gRPC's, whose
// futex waits for the kernel's wall clock: after a step a new wait is as long as it is to be.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
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

// Both come before the C library's own, for the program and all libraries that it loads.
extern "C" long syscall(long number, ...) noexcept {
  using Syscall = long (*)(long, ...);
  static std::atomic<Syscall> next{nullptr};
  if (next == nullptr) next = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  timespec deadline{};
  const auto* const given = reinterpret_cast<const timespec*>(arguments[3]);
  constexpr long kByWallClock = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number == SYS_futex && (arguments[1] & ~FUTEX_PRIVATE_FLAG) == kByWallClock && given != nullptr) {
    deadline = {.tv_sec = given->tv_sec - offset_seconds->load(), .tv_nsec = given->tv_nsec};
    arguments[3] = reinterpret_cast<long>(&deadline);
  }
  return next.load()(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += offset_seconds->load();
  return result;
}
