// A restore of a world of several daemons, at a daemon that is not node 0.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_RESTORE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_RESTORE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/model_restore.h"
#include "server/checkpoints/restore_peers.h"
#include "server/checkpoints/restore_write.h"
#include "server/checkpoints/restorer.h"
#include "server/models/model.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Carries out the orders of node 0's LeadingRestore, and reports progress. When node 0 gives up the restore, is lost,
// or sends nothing until the deadline, the restore ends here too, also while rows are written.
//
// One thread calls the methods of RestorePeers, and Finish; any thread may call On...() and Cancel().
class FollowingRestore final : public RestorePeers {
 public:
  struct Options {
    Cluster* cluster = nullptr;  // outlives the restore
    std::string model;
    RestoreOrder order;
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();         // outlives the restore
    std::function<void()> before_ready = [] {};    // tests hold the restore back
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise
  };

  explicit FollowingRestore(Options options)
      : options_(std::move(options)),
        write_({.deadline = options_.deadline, .clock = options_.clock, .before_rows = options_.before_rows}) {}

  const std::string& model() const { return options_.model; }
  const RestoreOrder& order() const { return options_.order; }

  // Messages of node 0. An error of OnEnd: the restore is given up, or node 0 is lost.
  void OnGo();
  void OnEnd(const absl::Status& status);

  std::optional<HistoryId> history() const override { return HistoryId{order().id}; }
  bool can_redo() const override { return false; }
  // Also set if node 0 creates a model that exists here and has changed since its creation.
  std::string RollbackWhy(const Model& model) const override;
  absl::Status Begin() override;
  absl::Status Write(Restorer& restorer) override;
  absl::Status CheckGoesOn() override;
  absl::Status Conclude(const Restorer& restorer) override;
  Restorer::Progress Whole(const Restorer::Progress& own) const override { return own; }
  void Cancel() override;

  // Reports the result. Called after the end of the ModelRestore, which has the model's turn: node 0 may order the next
  // restore then.
  void Finish(const absl::Status& status);

 private:
  void Report(RestorePhase phase, const absl::Status& status = absl::OkStatus());
  void TellProgress(const Restorer& restorer);
  void TellSums(const checkpoint::ContentHashes& sums);
  absl::Status LateWriteError() const;
  // Returns an error if the restore is given up, here or by node 0.
  absl::Status GivenUp() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Stops the write if the restore is given up.
  void StopWrite() ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Waits for go or end.
  absl::Status Await(bool for_go);

  const Options options_;
  RestoreWrite write_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool may_go_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

// Prepares an ordered restore, which changes nothing. FAILED_PRECONDITION if this daemon's spec differs from node 0's,
// or if it sees another save in the folder; INVALID_ARGUMENT for an order that names no folder; errors of
// ChooseCheckpoint and ModelRestore::Prepare.
struct OrderedRestore {
  CheckpointChoice choice;
  std::unique_ptr<ModelRestore> restore;
};
absl::StatusOr<OrderedRestore> PrepareOrdered(const std::shared_ptr<Model>& model, const RestoreOrder& order);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_RESTORE_H_
