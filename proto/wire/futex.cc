#include "proto/wire/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace paramshard::wire {

// Not FUTEX_PRIVATE: the word lies in memory that two processes map.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, absl::Duration timeout) {
  const timespec relative = absl::ToTimespec(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24)));
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace paramshard::wire
