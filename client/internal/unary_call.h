// An RPC with one answer that its caller may interrupt.
#ifndef PARAMSHARD_CLIENT_INTERNAL_UNARY_CALL_H_
#define PARAMSHARD_CLIENT_INTERNAL_UNARY_CALL_H_

#include <memory>

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/deadline.h"
#include "client/internal/grpc_status.h"
#include "client/internal/interruption.h"

namespace paramshard::internal {

// Stub::PrepareAsyncX of a service's RPC X.
template <typename Stub, typename Request, typename Response>
using PreparedRpc = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*)(grpc::ClientContext*,
                                                                                         const Request&,
                                                                                         grpc::CompletionQueue*);

// Calls the RPC, within the context's deadline, if it has one. An interrupted call is cancelled, and over on return:
// work that the daemon has done by then stays done.
template <typename Stub, typename Request, typename Response>
absl::Status CallUnary(Stub& stub, PreparedRpc<Stub, Request, Response> rpc, grpc::ClientContext& context,
                       const Request& request, Response& response, const Interruption& interruption) {
  grpc::CompletionQueue queue;
  grpc::Status answer;
  const auto call = (stub.*rpc)(&context, request, &queue);
  call->StartCall();
  call->Finish(&response, &answer, &queue);
  // gRPC answers in any case: at the context's deadline, or when the connection breaks.
  const Deadline never = Deadline::After(absl::InfiniteDuration());
  const absl::Status interrupted = interruption.NextEvent(queue, never).status();
  if (interrupted.ok()) return FromGrpc(answer);
  context.TryCancel();
  Interruption().NextEvent(queue, never).IgnoreError();
  return interrupted;
}

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_UNARY_CALL_H_
