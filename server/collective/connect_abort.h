// Ends the connecting of engines from another thread.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_CONNECT_ABORT_H_
#define PARAMSHARD_SERVER_COLLECTIVE_CONNECT_ABORT_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// Whoever connects hooks in what wakes its waits. Thread-safe; the first status stays.
class ConnectAbort {
 public:
  // Ends what is being connected, and all that is connected with this object later.
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

  // For as long as it lives Abort calls `wake`, which does not call back; at once if it has been called before. One at
  // a time. `abort` may be null: then nothing happens.
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

#endif  // PARAMSHARD_SERVER_COLLECTIVE_CONNECT_ABORT_H_
