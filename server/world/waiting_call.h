// A call of another daemon that waits for the coordinator.
#ifndef PARAMSHARD_SERVER_WORLD_WAITING_CALL_H_
#define PARAMSHARD_SERVER_WORLD_WAITING_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/grpc_deadline.h"
#include "server/world/coordinator.h"

namespace paramshard::server {

// Holds no thread while it waits. Ends with the answer, when the caller is gone, or after a timeout.
template <typename Answer>
class WaitingCall final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<WaitingCall<Answer>> {
 public:
  using Answered = std::function<void(const Answer& answer)>;
  // Asks the coordinator; `answered` is called with the answer.
  using Ask = std::function<Coordinator::Wait(Answered answered)>;
  // Writes the response and returns the call's status. Gets DEADLINE_EXCEEDED if there was no answer in time.
  using Respond = std::function<grpc::Status(const Answer& answer)>;

  // `coordinator` outlives the call.
  static grpc::ServerUnaryReactor* Start(Coordinator* coordinator, absl::Duration wait, const Ask& ask,
                                         Respond respond) {
    const std::shared_ptr<WaitingCall> call(new WaitingCall(coordinator, std::move(respond)));
    call->self_ = call;
    const Coordinator::Wait waiting = ask([call](const Answer& answer) { call->End(call->respond_(answer)); });
    call->WaitFor(waiting, wait);
    return call.get();
  }

 private:
  WaitingCall(Coordinator* coordinator, Respond respond) : coordinator_(coordinator), respond_(std::move(respond)) {}

  void WaitFor(const Coordinator::Wait& waiting, absl::Duration wait) {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    waiting_ = waiting;
    alarm_.emplace();
    alarm_->Set(GrpcDeadline(wait), [weak = this->weak_from_this()](bool late) {
      const std::shared_ptr<WaitingCall> call = weak.lock();
      if (late && call != nullptr) call->GiveUp(absl::DeadlineExceededError("timed out waiting for an answer"));
    });
  }

  // Ends the call if the coordinator has not answered it, and only then.
  void GiveUp(const absl::Status& why) {
    Coordinator::Wait waiting;
    {
      absl::MutexLock lock(&mu_);
      if (ended_) return;
      waiting = waiting_;
    }
    if (coordinator_->GiveUp(waiting)) End(respond_(why));
  }

  void End(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      alarm_.reset();
    }
    Finish(status);
  }

  void OnCancel() override { GiveUp(absl::CancelledError("the caller disconnected")); }
  void OnDone() override { const std::shared_ptr<WaitingCall> self = std::move(self_); }

  Coordinator* const coordinator_;
  const Respond respond_;
  std::shared_ptr<WaitingCall> self_;  // until OnDone

  absl::Mutex mu_;
  Coordinator::Wait waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_WAITING_CALL_H_
