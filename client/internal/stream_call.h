// An RPC with a stream of answers that its caller may interrupt.
#ifndef PARAMSHARD_CLIENT_INTERNAL_STREAM_CALL_H_
#define PARAMSHARD_CLIENT_INTERNAL_STREAM_CALL_H_

#include <memory>

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/deadline.h"
#include "client/internal/grpc_status.h"
#include "client/internal/interruption.h"

namespace paramshard::internal {

// Stub::PrepareAsyncX of a service's RPC X.
template <typename Stub, typename Request, typename Response>
using PreparedStreamRpc = std::unique_ptr<grpc::ClientAsyncReader<Response>> (Stub::*)(grpc::ClientContext*,
                                                                                       const Request&,
                                                                                       grpc::CompletionQueue*);

// Calls the RPC, and `sink` with each of its answers, on the calling thread. An interrupted call is cancelled, and over
// on return: work that the daemon has done by then stays done, or goes on, as the RPC says.
template <typename Stub, typename Request, typename Response, typename Sink>
absl::Status CallStream(Stub& stub, PreparedStreamRpc<Stub, Request, Response> rpc, grpc::ClientContext& context,
                        const Request& request, const Sink& sink, const Interruption& interruption) {
  const Deadline never = Deadline::After(absl::InfiniteDuration());
  grpc::CompletionQueue queue;
  absl::Status interrupted;
  // Returns true if the operation under way has succeeded. An interrupted one has ended on return, too.
  const auto complete = [&] {
    const absl::StatusOr<bool> succeeded = interruption.NextEvent(queue, never);
    if (succeeded.ok()) return *succeeded;
    interrupted = succeeded.status();
    context.TryCancel();
    Interruption().NextEvent(queue, never).IgnoreError();
    return false;
  };

  const auto call = (stub.*rpc)(&context, request, &queue);
  call->StartCall(nullptr);
  Response response;
  for (bool open = complete(); open;) {
    call->Read(&response, nullptr);
    open = complete();
    if (open) sink(response);
  }
  grpc::Status answer;
  call->Finish(&answer, nullptr);
  Interruption().NextEvent(queue, never).IgnoreError();
  return interrupted.ok() ? FromGrpc(answer) : interrupted;
}

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_STREAM_CALL_H_
