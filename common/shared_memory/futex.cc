#include "common/shared_memory/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace paramshard::wire {
namespace {

// Some systems have headers that are older than their kernel.
#ifdef SYS_futex_waitv
constexpr long kWaitV = SYS_futex_waitv;
#else
constexpr long kWaitV = 449;
#endif

timespec Bounded(absl::Duration timeout) {
  return absl::ToTimespec(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24)));
}

void Wait(const std::atomic<uint32_t>& word, int operation, uint32_t seen, absl::Duration timeout) {
  const timespec relative = Bounded(timeout);
  syscall(SYS_futex, &word, operation, seen, &relative, nullptr, 0);
}

timespec MonotonicDeadline(absl::Duration timeout) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + absl::DurationFromTimespec(Bounded(timeout)));
}

}  // namespace

// FUTEX_PRIVATE is not set: two processes map the word's memory.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout) {
  Wait(word, FUTEX_WAIT, seen, timeout);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void PrivateFutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout) {
  Wait(word, FUTEX_WAIT_PRIVATE, seen, timeout);
}

void PrivateFutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool CanWaitForEither() {
  // The call has no waiters: a kernel that knows it answers EINVAL.
  static const bool can = syscall(kWaitV, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) != 0 && errno == EINVAL;
  return can;
}

void FutexWaitForEither(const std::atomic<uint32_t>& shared_word, uint32_t shared_seen,
                        const std::atomic<uint32_t>& private_word, uint32_t private_seen, absl::Duration timeout) {
  const auto address = [](const std::atomic<uint32_t>& word) { return reinterpret_cast<uint64_t>(&word); };
  futex_waitv waiters[] = {
      {.val = shared_seen, .uaddr = address(shared_word), .flags = FUTEX_32, .__reserved = 0},
      {.val = private_seen, .uaddr = address(private_word), .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG, .__reserved = 0}};
  const timespec deadline = MonotonicDeadline(timeout);
  syscall(kWaitV, waiters, 2, 0, &deadline, CLOCK_MONOTONIC);
}

}  // namespace paramshard::wire
