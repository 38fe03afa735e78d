// TrainerService.Import and Export: full tensors in, owned rows out, in checksummed chunks.
#ifndef PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
#define PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/service/stall_guard.h"
#include "server/store/model_store.h"

namespace paramshard::server {

inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// Applied when the end message has come; a stream that ends without it changes nothing. DEADLINE_EXCEEDED when the next
// message does not come within `stall_timeout`: the call is cancelled by then, so that the caller reads CANCELLED.
absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const grpc::ServerContext& context,
                                                 grpc::ServerReader<v1::ImportRequest>* reader,
                                                 absl::Duration stall_timeout = kStallTimeout);

// The same when the caller takes nothing for `stall_timeout`.
absl::Status ExportTensors(const ModelStore& store, const grpc::ServerContext& context,
                           const v1::ExportRequest& request, grpc::ServerWriter<v1::ExportResponse>* writer,
                           absl::Duration stall_timeout = kStallTimeout);

// The messages of an export. Stops when `send` fails.
absl::Status ExportModel(const Model& model, const v1::ExportRequest& request,
                         absl::FunctionRef<absl::Status(const v1::ExportResponse&)> send);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
