// TrainerService.Import and Export: full tensors in, owned rows out, in checksummed chunks.
#ifndef PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
#define PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/service/call.h"
#include "server/store/model_store.h"

namespace paramshard::server {

inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// A stream that breaks off, unlike one that the client half-closes, cancels the call: then nothing is applied.
absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const Call& context,
                                                 MessageReader<v1::ImportRequest>* reader);

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           MessageWriter<v1::ExportResponse>* writer);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_TENSOR_TRANSFER_H_
