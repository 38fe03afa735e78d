// A restore of a daemon's model, from a checkpoint's folder to the history that begins.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_TASK_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_TASK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "server/base/steady_time.h"
#include "server/checkpoints/checkpoint_loader.h"
#include "server/checkpoints/restore_agreement.h"
#include "server/models/import_lock.h"
#include "server/models/model.h"
#include "server/terms/history.h"
#include "server/terms/restore_message.h"

namespace paramshard::server {

// Source and result of a restore.
struct RestoreResult {
  std::string path = {};
  absl::uint128 save_id = 0;
  int64_t step = 0;
  int64_t version = 0;
  History history = {};
  absl::uint128 saved_history = 0;
  int saved_world_size = 0;
  int saved_shard_size = 0;
  int64_t size_bytes = 0;  // of the checkpoint
  absl::Duration elapsed = absl::ZeroDuration();
};

// Holds the model's import lock for as long as it lives. Restores::Run runs a task together with the other daemons.
//
//   ASSIGN_OR_RETURN(const auto task, RestoreTask::Prepare(model, folder));
//   ASSIGN_OR_RETURN(const RestoreResult result, task->Run());   // of a model that this daemon has all of
//
// One thread at a time.
class RestoreTask {
 public:
  // Opens the checkpoint, compares it with the model, and reserves memory and threads for the restore. Changes nothing.
  // Folder and files must belong to the daemon's user or to root. `order` says what other daemons need to know, and
  // whether to convert moments. Errors of StateChanges::BeginRestore, Reader::Open, RestorePlan::Create and
  // CheckpointLoader::Create.
  // `begin`: when the restore was asked for, for RestoreResult::elapsed.
  static absl::StatusOr<std::unique_ptr<RestoreTask>> Prepare(std::shared_ptr<Model> model, const std::string& folder,
                                                              RestoreOrder order = {}, SteadyTime begin = SteadyNow());
  // Like above, with a lock that was taken before.
  static absl::StatusOr<std::unique_ptr<RestoreTask>> Prepare(ImportLock lock, const std::string& folder,
                                                              RestoreOrder order = {}, SteadyTime begin = SteadyNow());
  // Prepares what node 0 has ordered. FAILED_PRECONDITION if this daemon's spec differs from node 0's, or if it sees
  // another save in the folder; INVALID_ARGUMENT for an order that names no folder; errors of CheckRollsBack and
  // ChooseCheckpoint.
  static absl::StatusOr<std::unique_ptr<RestoreTask>> PrepareOrdered(std::shared_ptr<Model> model,
                                                                     const RestoreOrder& order);

  // Prepares and runs it, and releases the model's import lock.
  static absl::StatusOr<RestoreResult> RunOrdered(std::shared_ptr<Model> model, RestoreAgreement& agreement,
                                                  absl::FunctionRef<absl::Status()> begun);

  const Model& model() const { return import_lock_.model(); }
  const RestoreOrder& order() const { return order_; }
  const std::string& folder() const { return reader_.folder(); }
  const checkpoint::Manifest& manifest() const { return reader_.manifest(); }
  // Bytes that Run will read and compare.
  int64_t all_bytes() const { return loader_->progress().all_bytes; }
  // Number of copies of every row in the world.
  int replicas() const;
  // Checks that a restore that was not requested rolls back: the checkpoint must be an earlier one of the model's
  // history, or the one that the history began with. FAILED_PRECONDITION otherwise; OK for a model that has no state to
  // give up.
  absl::Status CheckRollsBack() const;

  // Changes the model. Call it once. `begun` is called first, when trainers and readers are held off; its error ends
  // the restore, with nothing changed. Errors of StateChanges::Restore: FAILED_PRECONDITION naming a trainer, with
  // nothing changed; errors of RestoreAgreement::Agree, likewise; DATA_LOSS.
  absl::StatusOr<RestoreResult> Run(RestoreAgreement& agreement, absl::FunctionRef<absl::Status()> begun);
  // Like above, for a model that this daemon has all of. FAILED_PRECONDITION for any other model.
  absl::StatusOr<RestoreResult> Run(absl::FunctionRef<absl::Status()> begun = [] { return absl::OkStatus(); });

 private:
  RestoreTask(ImportLock lock, checkpoint::Reader reader, RestoreOrder order, SteadyTime begin)
      : begin_(begin), import_lock_(std::move(lock)), reader_(std::move(reader)), order_(std::move(order)) {}
  absl::StatusOr<History> Restore(RestoreAgreement& agreement, const std::string& rollback_why,
                                  absl::FunctionRef<absl::Status()> begun);
  RestoreResult ResultOf(const History& history) const;

  const SteadyTime begin_;
  // The loader refers to the members above it.
  ImportLock import_lock_;
  const checkpoint::Reader reader_;
  const RestoreOrder order_;
  std::unique_ptr<CheckpointLoader> loader_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_TASK_H_
