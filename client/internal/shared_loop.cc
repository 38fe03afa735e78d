#include "client/internal/shared_loop.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/blocked_signals.h"
#include "client/internal/deadline.h"
#include "client/internal/interruption.h"

namespace paramshard::internal {
namespace {

constexpr int kMostThreads = 16;

class Progress {
 public:
  explicit Progress(const SharedLoop& loop) : loop_(loop) {}

  // Returns false at the end.
  bool Step() {
    if (stopped_) return false;
    const int64_t index = next_.fetch_add(1);
    if (index >= loop_.count) return false;
    if (absl::Status status = loop_.body(index); !status.ok()) Fail(index, std::move(status));
    return true;
  }
  void Fail(int64_t index, absl::Status status) {
    const absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (index >= failed_) return;
    failed_ = index;
    error_ = std::move(status);
  }
  absl::Status error() {
    const absl::MutexLock lock(&mu_);
    return error_;
  }

 private:
  const SharedLoop& loop_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  absl::Mutex mu_;
  int64_t failed_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

std::vector<std::thread> StartThreads(int count, Progress& progress) {
  std::vector<std::thread> threads;
  const BlockedSignals blocked;
  try {
    while (static_cast<int>(threads.size()) < count) {
      threads.emplace_back([&progress] {
        while (progress.Step()) {
        }
      });
    }
  } catch (const std::system_error&) {
    // At a limit of threads those that there are do the work.
  }
  return threads;
}

}  // namespace

int SharedLoopThreads() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) != 0 ? 1 : std::min(CPU_COUNT(&cpus), kMostThreads);
}

absl::Status RunShared(const SharedLoop& loop) {
  Progress progress(loop);
  const auto helpers = static_cast<int>(std::min<int64_t>(loop.threads, loop.count)) - 1;
  std::vector<std::thread> threads = StartThreads(helpers, progress);
  Deadline next = Deadline::After(Interruption::kSlice);
  while (progress.Step()) {
    if (!next.Passed()) continue;
    if (absl::Status asked = loop.ask(); !asked.ok()) progress.Fail(loop.count, std::move(asked));
    next = Deadline::After(Interruption::kSlice);
  }
  for (std::thread& thread : threads) thread.join();
  return progress.error();
}

}  // namespace paramshard::internal
