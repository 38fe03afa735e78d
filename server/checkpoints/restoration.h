// A restore from the request to its result.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORATION_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/following_restore.h"
#include "server/checkpoints/model_restore.h"
#include "server/checkpoints/restore_leader.h"
#include "server/checkpoints/restore_plan.h"
#include "server/models/model.h"
#include "server/terms/history.h"

namespace paramshard::server {

struct WantedRestore {
  CheckpointRequest checkpoint = {};
  RestorePlan::Options plan = {};
};

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

// A restore at node 0, which chooses the checkpoint. Holds the model's turn from Prepare to the end of Run.
//
//   ASSIGN_OR_RETURN(Restoration restoration, Restoration::Prepare(model, wanted, &leader));
//   ASSIGN_OR_RETURN(const RestoreResult result, restoration.Run([] { return absl::OkStatus(); }));
//
// One thread at a time.
class Restoration {
 public:
  // Prepares the restore of an existing model, which changes nothing. `leader` outlives it. Errors of ChooseCheckpoint
  // and ModelRestore::Prepare.
  static absl::StatusOr<Restoration> Prepare(std::shared_ptr<Model> model, const WantedRestore& wanted,
                                             RestoreLeader* leader);
  // Like above, for a model that is being created. `is_abandoned`: LeadingRestore::Options. `rollback_why`:
  // RestoreOrder.
  static absl::StatusOr<Restoration> PrepareCreation(std::shared_ptr<Model> model, const WantedRestore& wanted,
                                                     RestoreLeader* leader, std::function<bool()> is_abandoned,
                                                     std::string rollback_why = {}, bool was_asked_for = false);
  // Prepares a rollback of an existing model to the checkpoint that was saved last, or to the checkpoint of the restore
  // that broke off: all daemons go back to it, and daemons without the model create it. FAILED_PRECONDITION if this
  // daemon's state does not follow from that checkpoint.
  static absl::StatusOr<Restoration> PrepareRollback(std::shared_ptr<Model> model, const std::string& why,
                                                     RestoreLeader* leader);

  int64_t all_bytes() const { return restore_->all_bytes(); }

  // Runs the restore, and logs its result. Call it once. Errors of RestoreLeader::Run.
  absl::StatusOr<RestoreResult> Run(absl::FunctionRef<absl::Status()> begun);

 private:
  Restoration(std::shared_ptr<Model> model, RestoreLeader* leader) : model_(std::move(model)), leader_(leader) {}

  SteadyTime begin_ = SteadyNow();
  std::shared_ptr<Model> model_;
  RestoreLeader* leader_;
  RestoreLeader::Terms terms_;
  CheckpointChoice choice_;
  std::unique_ptr<ModelRestore> restore_;
};

// Runs a restore at another node, of the checkpoint that node 0 has chosen. Errors of PrepareOrdered and
// ModelRestore::Run.
absl::StatusOr<RestoreResult> FollowOrder(const std::shared_ptr<Model>& model, FollowingRestore& following,
                                          absl::FunctionRef<absl::Status()> begun);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORATION_H_
