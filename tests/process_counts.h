// What this process holds, as the kernel counts it: for tests that nothing is left behind.

#ifndef PARAMSHARD_TESTS_PROCESS_COUNTS_H_
#define PARAMSHARD_TESTS_PROCESS_COUNTS_H_

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

// By the name that the kernel keeps, which is cut after 15 characters.
inline std::map<std::string, int64_t> ThreadsByName(const std::string& process) {
  std::map<std::string, int64_t> counts;
  std::error_code ended;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + process + "/task", ended)) {
    std::string name;
    if (std::getline(std::ifstream(thread.path() / "comm"), name)) ++counts[name];
  }
  return counts;
}

// Whether that is the name of threads that gRPC starts as it likes, by the number of cores, and may keep.
inline bool IsOfAPool(const std::string& name) {
  for (const char* pool :
       {"default-execut", "resolver-execut", "event_engine", "timer_manager", "nexting_thread", "grpc"}) {
    if (name.rfind(pool, 0) == 0) return true;
  }
  return false;
}

// Those of a process, by its id or "self", which are not gRPC's.
inline int64_t OwnThreads(const std::string& process = "self") {
  int64_t threads = 0;
  for (const auto& [name, count] : ThreadsByName(process)) threads += IsOfAPool(name) ? 0 : count;
  return threads;
}

// Waits until the count is no more than that: what another thread gives up goes a moment after it has said so. Whoever
// counts before may have counted such things too, which are gone later: there may be less in the end, never more.
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
