// Timer of a call.
#ifndef PARAMSHARD_SERVER_EDGE_CALL_TIMER_H_
#define PARAMSHARD_SERVER_EDGE_CALL_TIMER_H_

#include <grpcpp/alarm.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/grpc_deadline.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// One timer of a call, which is guarded by the call's mutex. The call may end while the timer runs.
class CallTimer {
 public:
  // `mu` is the call's.
  explicit CallTimer(absl::Mutex* mu) : mu_(mu) {}

  // Runs `then` after `wait`, on a thread of gRPC's with the mutex held, unless the timer is set again or stopped
  // before, or `call` is gone by then.
  void Set(absl::Duration wait, std::weak_ptr<void> call, std::function<void()> then) {
    mu_->AssertHeld();
    Arm(++generation_, SteadyDeadline(wait), std::move(call), std::move(then));
  }
  void Stop() {
    mu_->AssertHeld();
    ++generation_;
  }
  // Stops, and frees `then`.
  void Clear() {
    Stop();
    alarm_.reset();
  }

 private:
  // gRPC's clock runs on while the process stands still: then the alarm comes too early, and is set again.
  void Arm(int64_t generation, SteadyTime deadline, std::weak_ptr<void> call, std::function<void()> then) {
    alarm_.emplace();  // an assignment would leave the old alarm behind
    alarm_->Set(GrpcDeadline(TimeLeft(deadline)),
                [this, generation, deadline, weak = std::move(call), then = std::move(then)](bool) {
                  const std::shared_ptr<void> call = weak.lock();
                  if (call == nullptr) return;
                  absl::MutexLock lock(mu_);
                  if (generation != generation_) return;
                  if (TimeLeft(deadline) > absl::ZeroDuration()) return Arm(generation, deadline, weak, then);
                  then();
                });
  }

  absl::Mutex* const mu_;
  int64_t generation_ = 0;  // of the last Set or Stop
  std::optional<grpc::Alarm> alarm_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_CALL_TIMER_H_
