// TrainerService.Import and Export: takes full tensors, sends owned rows, in checksummed chunks.
#ifndef PARAMSHARD_SERVER_EDGE_TENSOR_TRANSFER_H_
#define PARAMSHARD_SERVER_EDGE_TENSOR_TRANSFER_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/edge/call.h"
#include "server/models/model_store.h"

namespace paramshard::server {

inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// Applies an import when its end message has come; a stream that ends without it changes nothing.
absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const Call& context,
                                                 MessageReader<v1::ImportRequest>* reader);

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           MessageWriter<v1::ExportResponse>* writer);

// Sends the messages of an export. Stops if `send` fails.
absl::Status ExportModel(const Model& model, const v1::ExportRequest& request,
                         absl::FunctionRef<absl::Status(const v1::ExportResponse&)> send);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TENSOR_TRANSFER_H_
