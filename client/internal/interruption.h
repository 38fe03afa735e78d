// Callback that interrupts a blocking call.
#ifndef PARAMSHARD_CLIENT_INTERNAL_INTERRUPTION_H_
#define PARAMSHARD_CLIENT_INTERNAL_INTERRUPTION_H_

#include <algorithm>
#include <functional>
#include <utility>

#include <grpcpp/completion_queue.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/deadline.h"

namespace paramshard::internal {

// Client::Options::interrupted; empty: nothing to ask. Copyable.
class Interruption {
 public:
  // How long a wait goes on before it asks again.
  static constexpr absl::Duration kSlice = absl::Milliseconds(100);

  Interruption() = default;
  explicit Interruption(std::function<absl::Status()> ask) : ask_(std::move(ask)) {}

  // Returns true if there is a function to ask.
  bool IsPossible() const { return ask_ != nullptr; }
  // An error ends the wait of the calling thread.
  absl::Status Ask() const { return ask_ == nullptr ? absl::OkStatus() : ask_(); }

  // Returns `ok` of the next event of a queue. DEADLINE_EXCEEDED without a text, or the error of Ask; then the event is
  // still to come.
  absl::StatusOr<bool> NextEvent(grpc::CompletionQueue& queue, const Deadline& deadline) const {
    void* tag;
    bool ok = false;
    while (true) {
      const Deadline slice = IsPossible() ? Deadline::After(std::min(kSlice, deadline.Left())) : deadline;
      if (queue.AsyncNext(&tag, &ok, slice.ToGrpc()) == grpc::CompletionQueue::GOT_EVENT) return ok;
      if (deadline.Passed()) return absl::DeadlineExceededError("");
      if (absl::Status status = Ask(); !status.ok()) return status;
    }
  }

 private:
  std::function<absl::Status()> ask_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_INTERRUPTION_H_
