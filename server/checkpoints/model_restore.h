// A restore of a daemon's model, from a checkpoint's folder to the history that begins.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_MODEL_RESTORE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_MODEL_RESTORE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "server/checkpoints/restore_peers.h"
#include "server/checkpoints/restore_plan.h"
#include "server/checkpoints/restorer.h"
#include "server/models/import_turn.h"
#include "server/models/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

// Checks that a restore that was not requested goes back: the checkpoint must be an earlier one of the model's history,
// or the one that the history began with. FAILED_PRECONDITION otherwise; OK for a model that has no state to give up.
absl::Status CheckGoesBack(const Model& model, const checkpoint::Manifest& manifest);

// Holds the model's turn for as long as it lives.
//
//   ASSIGN_OR_RETURN(const auto restore, ModelRestore::Prepare(model, choice.path, {}));
//   ASSIGN_OR_RETURN(const History history, restore->Run());
//
// One thread at a time.
class ModelRestore {
 public:
  // Opens the checkpoint, compares it with the model, and reserves memory and threads for the restore. Changes nothing.
  // Folder and files must belong to the daemon's user or to root. Errors of Model::BeginRestore, Reader::Open,
  // RestorePlan::Create and Restorer::Create.
  static absl::StatusOr<std::unique_ptr<ModelRestore>> Prepare(std::shared_ptr<Model> model, const std::string& folder,
                                                               const RestorePlan::Options& options);
  // Like above, with a turn that was taken before.
  static absl::StatusOr<std::unique_ptr<ModelRestore>> Prepare(ImportTurn turn, const std::string& folder,
                                                               const RestorePlan::Options& options);

  const checkpoint::Manifest& manifest() const { return reader_.manifest(); }
  // Bytes that Run will read and compare.
  int64_t all_bytes() const { return restorer_->progress().all_bytes; }

  // Changes the model. Call it once. `begun` is called first, when trainers and readers are held off; its error ends
  // the restore, with nothing changed. `peers` are the other daemons. Errors of Model::Restore: FAILED_PRECONDITION
  // naming a trainer, with nothing changed; errors of the peers' Begin, likewise; DATA_LOSS.
  absl::StatusOr<History> Run(absl::FunctionRef<absl::Status()> begun, RestorePeers& peers);
  // Like above, for a model that this daemon has all of. FAILED_PRECONDITION for any other model.
  absl::StatusOr<History> Run(absl::FunctionRef<absl::Status()> begun);
  absl::StatusOr<History> Run() {
    return Run([] { return absl::OkStatus(); });
  }

  // Number of copies of every row in the world.
  int replicas() const;

 private:
  ModelRestore(ImportTurn turn, ChangeSource source, checkpoint::Reader reader)
      : turn_(std::move(turn)), source_(std::move(source)), reader_(std::move(reader)) {}
  Model::RestoreWatch Watch(RestorePeers& peers) const;

  // The restorer refers to the members above it.
  ImportTurn turn_;
  const ChangeSource source_;
  const checkpoint::Reader reader_;
  std::unique_ptr<Restorer> restorer_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_MODEL_RESTORE_H_
