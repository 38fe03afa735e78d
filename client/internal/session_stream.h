// The gRPC stream of a session, with a deadline on every step.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SESSION_STREAM_H_
#define PARAMSHARD_CLIENT_INTERNAL_SESSION_STREAM_H_

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include "absl/status/statusor.h"
#include "client/internal/deadline.h"
#include "client/internal/interruption.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard::internal {

// One operation is under way at a time, and the caller's thread drives it: the synchronous gRPC
// stream has no deadline for a single read, and a deadline of the whole call would end a session
// that runs well. Not thread-safe.
class SessionStream {
 public:
  // Starts the call and sends the attach request. `interruption` may end this and every Read.
  static absl::StatusOr<std::unique_ptr<SessionStream>> Open(std::shared_ptr<grpc::Channel> channel,
                                                             const std::string& token, const v1::AttachRequest& attach,
                                                             const Deadline& deadline, Interruption interruption);
  // Cancels the call if Close was not called.
  ~SessionStream();
  SessionStream(const SessionStream&) = delete;
  SessionStream& operator=(const SessionStream&) = delete;

  // The daemon's next message. When the daemon has ended the call: its status, ABORTED where it
  // gave none. DEADLINE_EXCEEDED and an interruption cancel the call.
  absl::StatusOr<v1::SessionResponse> Read(const Deadline& deadline);

  // Announces that `command_count` commands were sent and no more will follow, and waits for the daemon's answer:
  // see DetachRequest. DEADLINE_EXCEEDED cancels the call.
  absl::Status Detach(int64_t command_count, const Deadline& deadline);
  // Half-closes and waits until the daemon has ended the call, with any status.
  // DEADLINE_EXCEEDED cancels it.
  absl::Status Close(const Deadline& deadline);

 private:
  SessionStream(std::shared_ptr<grpc::Channel> channel, Interruption interruption);

  // Waits for the operation under way. Returns true if it succeeded. When the deadline passes, or the caller interrupts
  // it, cancels the call, waits for the operation's end and sets `given_up_`.
  bool Complete(const Deadline& deadline, const Interruption& interruption = Interruption());
  // Returns why the wait for `what` was given up.
  absl::Status GivenUp(absl::string_view what) const;
  // Returns the status of an ended call; no operation may follow.
  absl::Status Finish(const Deadline& deadline);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TrainerService::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::SessionRequest, v1::SessionResponse>> call_;
  const Interruption interruption_;
  absl::Status given_up_;
  bool finished_ = false;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SESSION_STREAM_H_
