// Flag that an engine is to end, with the reason.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_ABORT_STATE_H_
#define PARAMSHARD_SERVER_DATA_PLANE_ABORT_STATE_H_

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// Keeps the first status that is set. Thread-safe; cheap to read while nothing is set.
class AbortState {
 public:
  // Returns true if `status` is the first one. Requires a status that is not OK.
  bool Set(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return false;
    status_ = status;
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  // OK until something is set.
  absl::Status status() const {
    if (!aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
    absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  std::atomic<bool> aborted_{false};
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_ABORT_STATE_H_
