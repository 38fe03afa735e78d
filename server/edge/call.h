// One call of a client, for its handler.
#ifndef PARAMSHARD_SERVER_EDGE_CALL_H_
#define PARAMSHARD_SERVER_EDGE_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/edge/call_timer.h"
#include "server/edge/caller_timeout.h"
#include "server/edge/callers.h"
#include "server/edge/messages.h"
#include "server/edge/workers.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Settings of a method.
struct CallMethod {
  std::string name;  // in messages
  Workers* workers = nullptr;
  CallerTimeout timeout;
  MetricRegistry* metrics = &MetricRegistry::Unread();
};

// A call of a known caller. Its body runs on a worker and ends it with End or Answer; then the object may be gone.
//
// An idle caller, which neither sends nor takes anything, keeps a call for as long as the method's timeout lasts, and
// a worker only once the first message has come. The first message and the last answer each have the whole timeout;
// reads and writes of the body share what is left of it. Then the call ends with DEADLINE_EXCEEDED; a call whose answer
// is not taken is cancelled.
class Call final : public CallReactor, public std::enable_shared_from_this<Call> {
 public:
  // Begins the call, and returns at once.
  static Call* Start(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
                     std::function<void(Call&)> body);

  const Callers::Caller& caller() const { return caller_; }
  // Returns true if the client disconnected or the call failed: its work may stop.
  bool IsCancelled() const;
  void TryCancel() const { context_->TryCancel(); }

  // For the body, on one thread. These three block, but not for ever.
  //
  // Parses the single request.
  absl::Status Parse(google::protobuf::MessageLite& request);
  // Reads the next message of a stream. Returns false at its end: half-closed, or broken, which IsCancelled tells.
  bool Read(google::protobuf::MessageLite& request);
  bool Write(const google::protobuf::MessageLite& response) { return Write(SerializeMessage(response)); }
  bool Write(grpc::ByteBuffer response);

  // End the call: the last use of this object. A failure of Read or Write takes precedence over `status`.
  void End(const absl::Status& status);
  void Answer(const google::protobuf::MessageLite& response);

 private:
  Call(const CallMethod& method, grpc::CallbackServerContext* context, Callers::Admission admission,
       std::function<void(Call&)> body);

  void Begin();
  void Dispatch();
  // Runs the body on a worker.
  void Run(Workers::Place place);
  // Receives a message. Returns false if there is none.
  bool Receive();
  // Waits until the operation on `message` is done. Returns false if it failed, or did not end in time.
  bool Await(std::optional<bool>& done, const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Late(absl::string_view expected) const;
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the worker's place back, and bounds the time in which the client may take the end of the call.
  void BoundEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // Constant after construction.
  const CallMethod& method_;  // the service's
  grpc::CallbackServerContext* const context_;
  const Callers::Caller caller_;
  const std::function<void(Call&)> body_;

  grpc::ByteBuffer request_;   // used by the operation in progress, else by the body
  grpc::ByteBuffer response_;  // likewise

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::shared_ptr<Call> self_ ABSL_GUARDED_BY(mu_);  // until OnDone
  // Set until OnDone, when gRPC's server and so the callers still exist. A cleared timer may be the last owner of this
  // object, after both.
  std::optional<Callers::Admission> admission_ ABSL_GUARDED_BY(mu_);
  // The body's place, until the call ends: a client that has the answer may call again.
  std::optional<Workers::Place> place_ ABSL_GUARDED_BY(mu_);
  CallTimer timer_ ABSL_GUARDED_BY(mu_);           // of the first message, and of the end
  CallerTimeLeft time_left_ ABSL_GUARDED_BY(mu_);  // for reads and writes of the body
  bool dispatched_ ABSL_GUARDED_BY(mu_) = false;   // the first message is in request_
  bool first_read_ ABSL_GUARDED_BY(mu_) = false;   // and the body has taken it
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<bool> read_ ABSL_GUARDED_BY(mu_);
  std::optional<bool> written_ ABSL_GUARDED_BY(mu_) = true;  // null while a write is in progress
  // Status of the call once the write in progress is done. No worker waits for it: a cancelled call gives up.
  std::optional<absl::Status> awaited_end_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// Reader and writer of the messages of one type in a stream.
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
  // Writes a message that is serialized.
  bool Write(grpc::ByteBuffer message) { return call_->Write(std::move(message)); }

 private:
  Call* const call_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_CALL_H_
