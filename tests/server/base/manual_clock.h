// A clock that stands still until a test moves it.
#ifndef PARAMSHARD_TESTS_SERVER_BASE_MANUAL_CLOCK_H_
#define PARAMSHARD_TESTS_SERVER_BASE_MANUAL_CLOCK_H_

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"

namespace paramshard::server {

class ManualClock final : public Clock {
 public:
  SteadyTime Now() const override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  // Wakes no thread: a thread that sleeps until a deadline looks when it is called.
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += absl::ToChronoNanoseconds(by);
  }

 private:
  mutable absl::Mutex mu_;
  SteadyTime now_ ABSL_GUARDED_BY(mu_) = SteadyNow();
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_BASE_MANUAL_CLOCK_H_
