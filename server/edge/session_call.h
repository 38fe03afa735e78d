// TrainerService.Session: one trainer's stream.
#ifndef PARAMSHARD_SERVER_EDGE_SESSION_CALL_H_
#define PARAMSHARD_SERVER_EDGE_SESSION_CALL_H_

#include <grpcpp/server_context.h>

#include "server/edge/call.h"
#include "server/edge/callers.h"
#include "server/edge/guarded_service.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Serves the stream until the trainer has left its model. A session has no thread: `workers->sessions` carry out its
// messages one by one, and timers wait for the trainer and for other trainers. `store`, `callers` and `workers` outlive
// the stream.
CallReactor* StartSession(ModelStore* store, Callers* callers, CallWorkers* workers,
                          grpc::CallbackServerContext* context, Callers::Admission admission);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_SESSION_CALL_H_
