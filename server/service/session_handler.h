// TrainerService.Session: one trainer's stream.
#ifndef PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_
#define PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/status/status.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/service/callers.h"
#include "server/store/model_store.h"

namespace paramshard::server {

using SessionStream = grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>;

// Serves the stream until the trainer has left its model. Blocks; a second thread reads meanwhile.
absl::Status ServeSession(ModelStore& store, Callers& callers, grpc::ServerContext& context, SessionStream* stream);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_
