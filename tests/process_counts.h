// What this process holds, as the kernel counts it: for tests that nothing is left behind.

#ifndef PARAMSHARD_TESTS_PROCESS_COUNTS_H_
#define PARAMSHARD_TESTS_PROCESS_COUNTS_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

namespace paramshard {

inline int64_t CountEntries(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

// Both count alike at any time: the listing's own descriptor is in it.
inline int64_t OpenDescriptors() { return CountEntries("/proc/self/fd"); }
inline int64_t Threads() { return CountEntries("/proc/self/task"); }

// Waits until the count is no more than that: what another thread gives up goes a moment after it has said so. Whoever
// counts before may have counted such things too, which are gone later: the same number again is more than it can expect.
inline bool SettlesWithin(int64_t most, int64_t (*count)()) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (count() > most) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_PROCESS_COUNTS_H_
