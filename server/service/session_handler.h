// TrainerService.Session: one trainer's stream.
#ifndef PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_
#define PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_

#include <grpcpp/server_context.h>

#include "server/service/call.h"
#include "server/service/callers.h"
#include "server/service/guarded_service.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Serves the stream until the trainer has left its model. A session has no thread: `workers->sessions` carry out its
// messages one by one, and timers wait for the trainer and for other trainers. `store`, `callers` and `workers` outlive
// the stream.
CallReactor* StartSession(ModelStore* store, Callers* callers, CallWorkers* workers,
                          grpc::CallbackServerContext* context, Callers::Admission admission);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_SESSION_HANDLER_H_
