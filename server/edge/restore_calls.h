// Restores that are requested by callers and by the daemon's flags.
#ifndef PARAMSHARD_SERVER_EDGE_RESTORE_CALLS_H_
#define PARAMSHARD_SERVER_EDGE_RESTORE_CALLS_H_

#include <sys/types.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "paramshard/v1/admin.pb.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restores.h"
#include "server/edge/call.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Returns OK for the daemon's own user and root: a folder that the caller names is read with the daemon's rights.
absl::Status CheckMayNameFolder(uid_t caller);

// AdminService.RestoreModel.
absl::Status RestoreModel(const ModelStore& store, Restores& restores, const v1::RestoreModelRequest& request,
                          const Call& call, MessageWriter<v1::RestoreModelResponse>* writer);

// TrainerService.CreateModel. `restore` is used if the request has no restore.
absl::StatusOr<v1::CreateModelResponse> CreateModel(ModelStore& store, Restores& restores,
                                                    const std::optional<CheckpointRequest>& restore,
                                                    const v1::CreateModelRequest& request, const Call& call);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_RESTORE_CALLS_H_
