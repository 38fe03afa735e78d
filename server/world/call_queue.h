// Queue of slow calls for callers that may not wait.
#ifndef PARAMSHARD_SERVER_WORLD_CALL_QUEUE_H_
#define PARAMSHARD_SERVER_WORLD_CALL_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// Thread-safe. Makes calls in order, on a thread of its own.
class CallQueue {
 public:
  // RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<CallQueue>> Start();
  // Makes the remaining calls.
  ~CallQueue();

  // Returns at once.
  void Add(std::function<void()> call);
  // Waits until all calls added so far are made. Must not be called from one of them.
  void Finish();

 private:
  CallQueue() = default;
  void Run();

  std::thread thread_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mu_);
  int64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t made_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_CALL_QUEUE_H_
