#include "server/service/stall_guard.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {
namespace {

using Clock = std::chrono::steady_clock;

gpr_timespec After(Clock::duration wait) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(nanoseconds, GPR_TIMESPAN));
}

}  // namespace

// Outlives the guard for as long as an alarm may still call. A message only moves the deadline; the alarm looks at it
// when it rings, and is set anew.
class StallGuard::State : public std::enable_shared_from_this<State> {
 public:
  State(const grpc::ServerContext& context, Clock::duration timeout)
      : timeout_(timeout), context_(&context), deadline_(Clock::now() + timeout) {}

  void Arm() {
    absl::MutexLock lock(&mu_);
    ArmLocked();
  }
  void Restart() {
    absl::MutexLock lock(&mu_);
    deadline_ = Clock::now() + timeout_;
  }
  // The alarm's call holds this object, which holds the alarm.
  void Stop() {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    alarm_.reset();
  }
  bool stalled() const {
    absl::MutexLock lock(&mu_);
    return stalled_;
  }

 private:
  void ArmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(After(deadline_ - Clock::now()), [self = shared_from_this()](bool rang) {
      if (rang) self->Ring();
    });
  }
  void Ring() {
    absl::MutexLock lock(&mu_);
    if (context_ == nullptr) return;
    if (Clock::now() < deadline_) return ArmLocked();
    stalled_ = true;
    context_->TryCancel();
  }

  const Clock::duration timeout_;
  mutable absl::Mutex mu_;
  const grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_);  // null once the guard is gone
  Clock::time_point deadline_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
};

StallGuard::StallGuard(const grpc::ServerContext& context, absl::Duration timeout)
    : state_(std::make_shared<State>(context, absl::ToChronoNanoseconds(timeout))) {
  state_->Arm();
}

StallGuard::~StallGuard() { state_->Stop(); }

void StallGuard::Restart() { state_->Restart(); }

bool StallGuard::stalled() const { return state_->stalled(); }

}  // namespace paramshard::server
