// Creations of models, which may begin with a checkpoint.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_MODEL_CREATION_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_MODEL_CREATION_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "server/checkpoints/restore_task.h"
#include "server/checkpoints/restores.h"
#include "server/models/model_store.h"

namespace paramshard::server {

struct CreatedModel {
  ModelStore::Created model = {};
  std::optional<RestoreResult> restored = {};  // set if the model was created, and from a checkpoint
};

// Creates a model, or joins an existing one. With `wanted` a new model begins with a checkpoint; `latest` without
// checkpoints is a fresh start, which is logged. In a world of several daemons node 0 chooses for all: at other nodes
// the call waits for its answer (Restores::AwaitOrder), and a creation without `wanted` follows an order of node
// 0 that has come already. If `wanted` is CheckpointRequest::Kind::kNone, nothing is restored, and node 0 is not asked.
//
// `values` describes the values of a model that is created with its initial values.
//
// A model of several daemons that this daemon has lost is also restored, with or without `wanted`: to the step that all
// daemons roll back to.
//
// `is_gone` returns true if the caller waits no longer (CreationTurns::IsGone): the creation then ends if it waits for
// other daemons. At node 0 it goes on if other callers wait for the same model, or if all daemons are ready.
//
// Errors of ModelStore::CreateOrJoin and Restores: then there is no model. UNAVAILABLE if it was
// given up because all callers at node 0 have gone.
absl::StatusOr<CreatedModel> CreateOrRestore(ModelStore& store, Restores& restores, ModelSpec spec,
                                             const std::optional<RestoreSource>& wanted,
                                             absl::FunctionRef<bool()> is_gone, const AnnouncedValues& values = {});

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_MODEL_CREATION_H_
