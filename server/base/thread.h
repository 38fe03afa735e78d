// Starts threads where a process limit is a status and no exception.
#ifndef PARAMSHARD_SERVER_BASE_THREAD_H_
#define PARAMSHARD_SERVER_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// Runs `body` on a thread of its own, which the caller joins. RESOURCE_EXHAUSTED at the limit of threads or memory,
// naming `purpose`: then `body` is never run.
absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body);

// For tests: after `successes` more threads every start fails, as at the limit, until this object ends. One at a time.
class ThreadShortage {
 public:
  explicit ThreadShortage(int successes);
  ThreadShortage(const ThreadShortage&) = delete;
  ThreadShortage& operator=(const ThreadShortage&) = delete;
  ~ThreadShortage();
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_THREAD_H_
