// Count of what all publications of a daemon have published.
#ifndef PARAMSHARD_SERVER_STATE_PUBLICATION_COUNT_H_
#define PARAMSHARD_SERVER_STATE_PUBLICATION_COUNT_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// For callers that wait until any model has another version, or is gone. Thread-safe.
class PublicationCount {
 public:
  void Add() {
    absl::MutexLock lock(&mu_);
    ++count_;
    changed_.SignalAll();
  }
  int64_t count() const {
    absl::MutexLock lock(&mu_);
    return count_;
  }
  // Waits until the count is not `seen`, at most until the deadline.
  void AwaitChange(int64_t seen, SteadyTime deadline) const {
    absl::MutexLock lock(&mu_);
    while (count_ == seen && !changed_.WaitUntil(&mu_, deadline)) {
    }
  }

 private:
  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PUBLICATION_COUNT_H_
