// Resources of this process, as the kernel counts them: for tests that nothing leaks.

#ifndef PARAMSHARD_TESTS_SUPPORT_PROCESS_COUNTS_H_
#define PARAMSHARD_TESTS_SUPPORT_PROCESS_COUNTS_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <thread>

namespace paramshard {

inline int64_t CountEntries(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

// Both count alike at any time: the listing's own descriptor is in it.
inline int64_t OpenDescriptors() { return CountEntries("/proc/self/fd"); }
inline int64_t Threads() { return CountEntries("/proc/self/task"); }

// Returns the numbers of threads by name, as the kernel truncates it, to 15 characters.
inline std::map<std::string, int64_t> ThreadsByName(const std::string& process) {
  std::map<std::string, int64_t> counts;
  std::error_code ended;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + process + "/task", ended)) {
    std::string name;
    if (std::getline(std::ifstream(thread.path() / "comm"), name)) ++counts[name];
  }
  return counts;
}

// Returns true for names of threads that gRPC starts freely, depending on the number of cores, and may keep.
inline bool IsOfAPool(const std::string& name) {
  for (const char* pool :
       {"default-execut", "resolver-execut", "event_engine", "timer_manager", "nexting_thread", "grpc"}) {
    if (name.rfind(pool, 0) == 0) return true;
  }
  return false;
}

// Returns the number of threads of a process (its id or "self"), without gRPC's threads.
inline int64_t OwnThreads(const std::string& process = "self") {
  int64_t threads = 0;
  for (const auto& [name, count] : ThreadsByName(process)) threads += IsOfAPool(name) ? 0 : count;
  return threads;
}

// Waits until the count is at most `most`. Other threads release resources a moment after they have said so. The count
// before may have included such resources, so the final count may be lower, but never higher.
inline bool SettlesWithin(int64_t most, int64_t (*count)()) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (count() > most) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_SUPPORT_PROCESS_COUNTS_H_
