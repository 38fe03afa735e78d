// A lock for threads on which trainers wait.
#ifndef PARAMSHARD_SERVER_TRAINING_SPINNING_MUTEX_LOCK_H_
#define PARAMSHARD_SERVER_TRAINING_SPINNING_MUTEX_LOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/shared_memory/pause.h"

namespace paramshard::server {

// Like absl::MutexLock, for a mutex that others hold for a few microseconds: to sleep for it, and be woken, takes
// longer.
class ABSL_SCOPED_LOCKABLE SpinningMutexLock {
 public:
  explicit SpinningMutexLock(absl::Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { Acquire(); }
  SpinningMutexLock(const SpinningMutexLock&) = delete;
  SpinningMutexLock& operator=(const SpinningMutexLock&) = delete;
  ~SpinningMutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }

 private:
  // Some 20 us on x86-64.
  static constexpr int kSpins = 500;

  void Acquire() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (mu_->TryLock()) return;
      wire::Pause();
    }
    mu_->Lock();
  }

  absl::Mutex* const mu_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SPINNING_MUTEX_LOCK_H_
