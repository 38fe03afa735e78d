// Starts threads; at a limit of the process it returns a status instead of throwing.
#ifndef PARAMSHARD_SERVER_BASE_THREAD_H_
#define PARAMSHARD_SERVER_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// Runs `body` on a thread of its own, which the caller joins. RESOURCE_EXHAUSTED at the limit of threads or memory,
// naming `purpose`; then `body` never runs.
absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body);

// For tests: after `successes` more threads every start fails, as at the limit, until this object ends. One at a time.
class ThreadShortage {
 public:
  explicit ThreadShortage(int successes);
  ThreadShortage(const ThreadShortage&) = delete;
  ThreadShortage& operator=(const ThreadShortage&) = delete;
  ~ThreadShortage();

  // Starts that have failed since this object began.
  int refusals() const;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_THREAD_H_
