#include "server/base/thread.h"

#include <atomic>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace paramshard::server {
namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

std::atomic<int> starts_left{kUnlimited};
std::atomic<int> refused_starts{0};

bool TakeStart() {
  int left = starts_left.load();
  while (left != kUnlimited && left > 0 && !starts_left.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

absl::Status ShortageError(absl::string_view purpose, absl::string_view why) {
  return absl::ResourceExhaustedError(
      absl::StrCat("failed to start a thread for ", purpose, ": ", why,
                   "; raise the limits of threads and memory (ulimit -u, TasksMax, pids.max)"));
}

}  // namespace

absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body) {
  if (!TakeStart()) {
    ++refused_starts;
    return ShortageError(purpose, "a test's shortage of threads");
  }
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return ShortageError(purpose, error.code().message());
  }
}

ThreadShortage::ThreadShortage(int successes) {
  refused_starts = 0;
  starts_left = successes;
}

ThreadShortage::~ThreadShortage() { starts_left = kUnlimited; }

int ThreadShortage::refusals() const { return refused_starts; }

}  // namespace paramshard::server
