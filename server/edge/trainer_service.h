// gRPC service for trainers: checks the caller, calls the domain, converts the error.
#ifndef PARAMSHARD_SERVER_EDGE_TRAINER_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_TRAINER_SERVICE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restores.h"
#include "server/edge/guarded_service.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Thread-safe; the first four arguments outlive the server that the service is registered with. `restore` is used for
// models that are created without a restore in the request.
class TrainerService final : public GuardedService {
 public:
  TrainerService(ModelStore* store, Restores* restores, Callers* callers, CallWorkers* workers,
                 std::optional<CheckpointRequest> restore);

 private:
  absl::StatusOr<v1::GetCapabilitiesResponse> GetCapabilities(const Call& call,
                                                              const v1::GetCapabilitiesRequest& request);
  absl::StatusOr<v1::CreateModelResponse> CreateModel(const Call& call, const v1::CreateModelRequest& request);
  absl::StatusOr<v1::GetModelResponse> GetModel(const Call& call, const v1::GetModelRequest& request);
  absl::StatusOr<v1::DeleteModelResponse> DeleteModel(const Call& call, const v1::DeleteModelRequest& request);
  absl::StatusOr<v1::ImportResponse> Import(const Call& call, MessageReader<v1::ImportRequest>* reader);
  absl::Status Export(const Call& call, const v1::ExportRequest& request, MessageWriter<v1::ExportResponse>* writer);

  ModelStore* const store_;
  Restores* const restores_;
  const std::optional<CheckpointRequest> restore_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TRAINER_SERVICE_H_
