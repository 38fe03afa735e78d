// Import and export of tensors as checksummed chunks.
#ifndef PARAMSHARD_CLIENT_INTERNAL_TENSOR_TRANSFER_H_
#define PARAMSHARD_CLIENT_INTERNAL_TENSOR_TRANSFER_H_

#include <functional>

#include <grpcpp/client_context.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard::internal {

// Sends tensors to a model whose spec is `spec`. NOT_FOUND or INVALID_ARGUMENT, before anything is
// sent, for a parameter that the spec lacks, rows outside of it, or a wrong number of values; then the
// errors of the Import RPC.
absl::Status ImportTensors(v1::TrainerService::Stub& stub, grpc::ClientContext& context, const ModelSpec& spec,
                           absl::Span<const ImportTensor> tensors, const ImportOptions& options);

// Reads extents and gives each to the sink. DATA_LOSS for a wrong checksum; INTERNAL for
// chunks out of order; the sink's own error; the errors of the Export RPC.
absl::StatusOr<ExportSummary> ExportTensors(v1::TrainerService::Stub& stub, grpc::ClientContext& context,
                                            absl::string_view model, const ExportOptions& options,
                                            const std::function<absl::Status(const ExportedExtent&)>& sink);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_TENSOR_TRANSFER_H_
