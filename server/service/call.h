// One call of a client, as its handler sees it.
#ifndef PARAMSHARD_SERVER_SERVICE_CALL_H_
#define PARAMSHARD_SERVER_SERVICE_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/service/callers.h"
#include "server/service/messages.h"
#include "server/service/workers.h"

namespace paramshard::server {

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// How a method is served.
struct CallMethod {
  std::string name;  // as messages say it
  Workers* workers = nullptr;
};

// The other side neither sends nor takes anything for so long: the call ends with DEADLINE_EXCEEDED.
inline constexpr absl::Duration kCallStallTimeout = absl::Minutes(2);

// A call whose caller is known. Its body runs on a worker and ends it with End or Answer; then the object is gone.
class Call final : public CallReactor {
 public:
  enum class Requests { kOne, kStream };
  // Begins the call, and returns at once. A single request is received before a worker is taken for it: nobody who does
  // not send holds a thread.
  static Call* Start(const CallMethod& method, Requests requests, grpc::CallbackServerContext* context,
                     Callers::Admission admission, std::function<void(Call&)> body);

  const Callers::Caller& caller() const { return admission_.caller(); }
  // Whether the client has gone, or the call has failed: whatever is done for it is in vain.
  bool IsCancelled() const;
  void TryCancel() const { context_->TryCancel(); }

  // For the body, on one thread. These three block, but not for ever.
  //
  // The single request.
  absl::Status Parse(google::protobuf::MessageLite& request);
  // The next message of a stream. False when it is over: half-closed, or broken, which IsCancelled tells.
  bool Read(google::protobuf::MessageLite& request);
  bool Write(const google::protobuf::MessageLite& response);

  // The last use of this object. A failure that Read or Write has met comes before `status`.
  void End(const absl::Status& status);
  void Answer(const google::protobuf::MessageLite& response);

 private:
  Call(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
       std::function<void(Call&)> body);

  void Dispatch();
  // Waits until the operation that was begun is done. False when it failed, or did not end in time.
  bool Await(std::optional<bool>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  // Constant after construction.
  const CallMethod& method_;  // the service's
  grpc::CallbackServerContext* const context_;
  const Callers::Admission admission_;
  const std::function<void(Call&)> body_;

  grpc::ByteBuffer request_;   // the operation's under way, else the body's
  grpc::ByteBuffer response_;  // likewise

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool dispatched_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<bool> read_ ABSL_GUARDED_BY(mu_);
  std::optional<bool> written_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// The messages of one type that a stream brings, or takes.
template <typename Message>
class MessageReader {
 public:
  explicit MessageReader(Call* call) : call_(call) {}
  bool Read(Message* message) { return call_->Read(*message); }

 private:
  Call* const call_;
};

template <typename Message>
class MessageWriter {
 public:
  explicit MessageWriter(Call* call) : call_(call) {}
  bool Write(const Message& message) { return call_->Write(message); }

 private:
  Call* const call_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_CALL_H_
