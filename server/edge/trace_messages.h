// Messages of AdminService for recorded events.
#ifndef PARAMSHARD_SERVER_EDGE_TRACE_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_TRACE_MESSAGES_H_

#include "absl/status/statusor.h"
#include "paramshard/v1/admin.pb.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Returns recent steps. Errors of GetTrace in admin.proto.
absl::StatusOr<v1::GetTraceResponse> GetTrace(const ModelStore& store, const v1::GetTraceRequest& request);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TRACE_MESSAGES_H_
