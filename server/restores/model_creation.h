// Creations of models, which may begin with a checkpoint.
#ifndef PARAMSHARD_SERVER_RESTORES_MODEL_CREATION_H_
#define PARAMSHARD_SERVER_RESTORES_MODEL_CREATION_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/model/model_spec.h"
#include "server/restores/restoration.h"
#include "server/restores/world_restores.h"
#include "server/store/model_store.h"

namespace paramshard::server {

struct CreatedModel {
  ModelStore::Created model = {};
  std::optional<RestoreResult> restored = {};  // of a model that was created, and not with its initial values
};

// Creates a model, or joins the one that is there. With `wanted` one that is created begins with a checkpoint; `latest`
// of none is a fresh start, which the log says. In a world of several daemons node 0 chooses for all: elsewhere the
// call waits for its word (RestoreFollower::AwaitOrder), and a creation without `wanted` follows an order of node 0 that
// is there already. Where `wanted` is none (CheckpointRequest::Kind::kNone) nothing is restored, and node 0 is not asked.
//
// `values` is what the caller says of a model that is created with its initial values.
//
// A model of several daemons that this one has lost is created so too, also without `wanted`: with the step that all go
// back to.
//
// `is_gone` says whether the caller waits no longer (CreationTurns::IsGone): then it ends where it waits for others. At
// node 0 it goes on for those who wait for the same model, and where all daemons are ready.
//
// Errors of ModelStore::CreateOrJoin, Restoration and RestoreFollower: then there is no model. UNAVAILABLE: it was given
// up because all callers at node 0 have gone.
absl::StatusOr<CreatedModel> CreateOrRestore(ModelStore& store, WorldRestores& restores, ModelSpec spec,
                                             const std::optional<WantedRestore>& wanted,
                                             absl::FunctionRef<bool()> is_gone, const ValuesToCome& values = {});

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_MODEL_CREATION_H_
