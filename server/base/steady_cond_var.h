// Condition variable with deadlines of the steady clock.
#ifndef PARAMSHARD_SERVER_BASE_STEADY_COND_VAR_H_
#define PARAMSHARD_SERVER_BASE_STEADY_COND_VAR_H_

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Replaces absl::CondVar, which waits by the wall clock: if the clock is set back during a wait, the wait grows by as
// much. Waits may end without a signal, so they stand in loops.
class SteadyCondVar {
 public:
  void Wait(absl::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Lockable lockable{mu};
    changed_.wait(lockable);
  }

  // Returns true if the deadline has passed.
  bool WaitUntil(absl::Mutex* mu, SteadyTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Lockable lockable{mu};
    return changed_.wait_until(lockable, MachineTime(deadline)) == std::cv_status::timeout && SteadyNow() >= deadline;
  }

  void SignalAll() { changed_.notify_all(); }

 private:
  // An absl::Mutex under the names of the standard library.
  struct Lockable {
    absl::Mutex* mu;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_STEADY_COND_VAR_H_
