// Handle to end the connecting of engines from another thread.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_CONNECT_ABORT_H_
#define PARAMSHARD_SERVER_DATA_PLANE_CONNECT_ABORT_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// A connecting thread installs a Hook that wakes its waits. Thread-safe; keeps the first status.
class ConnectAbort {
 public:
  // Ends connecting in progress, and all later connecting with this object.
  void Abort(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return;
    status_ = status;
    if (wake_) wake_(status);
  }

  // OK until Abort.
  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return status_;
  }

  // While it lives, Abort calls `wake`, which must not call back; the constructor calls it if Abort was called before.
  // At most one at a time. Does nothing if `abort` is null.
  class Hook {
   public:
    Hook(ConnectAbort* abort, std::function<void(const absl::Status&)> wake) : abort_(abort) {
      if (abort_ == nullptr) return;
      absl::MutexLock lock(&abort_->mu_);
      abort_->wake_ = std::move(wake);
      if (!abort_->status_.ok()) abort_->wake_(abort_->status_);
    }
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;
    ~Hook() {
      if (abort_ == nullptr) return;
      absl::MutexLock lock(&abort_->mu_);
      abort_->wake_ = nullptr;
    }

   private:
    ConnectAbort* const abort_;
  };

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> wake_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_CONNECT_ABORT_H_
