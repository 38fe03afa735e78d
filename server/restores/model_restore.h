// A restore of a daemon's model, from a checkpoint's folder to the history that begins.
#ifndef PARAMSHARD_SERVER_RESTORES_MODEL_RESTORE_H_
#define PARAMSHARD_SERVER_RESTORES_MODEL_RESTORE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint/manifest.h"
#include "proto/checkpoint/reader.h"
#include "server/restores/restore_peers.h"
#include "server/restores/restore_plan.h"
#include "server/restores/restorer.h"
#include "server/store/import_turn.h"
#include "server/store/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

// Nobody has asked to give up the state that the model has: the checkpoint is to be an earlier one of the same history,
// or the one that it began with. FAILED_PRECONDITION otherwise; OK for a model that has no state to give up.
absl::Status CheckGoesBack(const Model& model, const checkpoint::Manifest& manifest);

// Holds the model's turn for as long as it lives.
//
//   ASSIGN_OR_RETURN(const auto restore, ModelRestore::Prepare(model, choice.path, {}));
//   ASSIGN_OR_RETURN(const History history, restore->Run());
//
// One thread at a time.
class ModelRestore {
 public:
  // Opens the checkpoint, compares it with the model, and takes what the restore will take. Folder and files belong to
  // the daemon's user or to root. Nothing has changed. Errors of Model::BeginRestore, Reader::Open, RestorePlan::Create
  // and Restorer::Create.
  static absl::StatusOr<std::unique_ptr<ModelRestore>> Prepare(std::shared_ptr<Model> model, const std::string& folder,
                                                               const RestorePlan::Options& options);
  // With a turn that was taken before.
  static absl::StatusOr<std::unique_ptr<ModelRestore>> Prepare(ImportTurn turn, const std::string& folder,
                                                               const RestorePlan::Options& options);

  const checkpoint::Manifest& manifest() const { return reader_.manifest(); }
  // What Run has to do.
  int64_t all_bytes() const { return restorer_->progress().all_bytes; }

  // Changes the model. Once. `begun` is called first, when trainers and readers are held off; its error ends the
  // restore, with nothing changed. `peers` are the other daemons. Errors of Model::Restore: FAILED_PRECONDITION naming
  // a trainer, with nothing changed; those of Begin of the peers, likewise; DATA_LOSS.
  absl::StatusOr<History> Run(absl::FunctionRef<absl::Status()> begun, RestorePeers& peers);
  // The same of a model that this daemon has all of. FAILED_PRECONDITION for another one.
  absl::StatusOr<History> Run(absl::FunctionRef<absl::Status()> begun);
  absl::StatusOr<History> Run() {
    return Run([] { return absl::OkStatus(); });
  }

  // How often every row is there in the world.
  int replicas() const;

 private:
  ModelRestore(ImportTurn turn, ChangeSource source, checkpoint::Reader reader)
      : turn_(std::move(turn)), source_(std::move(source)), reader_(std::move(reader)) {}
  Model::RestoreWatch Watch(RestorePeers& peers) const;

  // The restorer refers to what is above it.
  ImportTurn turn_;
  const ChangeSource source_;
  const checkpoint::Reader reader_;
  std::unique_ptr<Restorer> restorer_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_MODEL_RESTORE_H_
