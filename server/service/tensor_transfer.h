// TrainerService.Import and Export: full tensors in, owned rows out, in checksummed chunks.
#ifndef PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
#define PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/store/model_store.h"

namespace paramshard::server {

inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// A stream that breaks off, unlike one that the client half-closes, cancels the call: then nothing is applied.
absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const grpc::ServerContext& context,
                                                 grpc::ServerReader<v1::ImportRequest>* reader);

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           grpc::ServerWriter<v1::ExportResponse>* writer);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
