// A restore of a world of several daemons, at node 0, which leads it.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_LEADING_RESTORE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_LEADING_RESTORE_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/manifest.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/restore_peers.h"
#include "server/checkpoints/restore_write.h"
#include "server/checkpoints/restorer.h"
#include "server/models/model.h"
#include "server/terms/restore_news.h"

namespace paramshard::server {

// Orders the restore, lets all daemons go, adds up the hashes of what they have written, and sends the result: see
// restore_news.h. FollowingRestore is the part of the others. It ends as soon as a daemon fails, and at the deadline,
// also while rows are written. A creation without a waiting caller is given up while other daemons are not ready; after
// that it goes on: the others lose nothing, and the next creation finds the model.
//
// One thread calls the methods of RestorePeers, and Finish; any thread may call On...() and Cancel().
class LeadingRestore final : public RestorePeers {
 public:
  struct Options {
    Cluster* cluster = nullptr;  // outlives the restore
    std::string model;
    RestoreOrder order;                    // without the timeout
    checkpoint::ContentHashes saved = {};  // of the checkpoint
    int replicas = 1;                      // of all nodes
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();  // outlives the restore
    // Returns true if no caller waits for the model that is created. Does not block.
    std::function<bool()> is_abandoned = [] { return false; };
    std::function<void()> before_go = [] {};       // tests hold the restore back
    std::function<void()> before_rows = [] {};     // likewise
    std::function<void()> before_written = [] {};  // likewise, when node 0 is done with its rows
    std::function<void()> before_end = [] {};      // likewise, before all are told that the state is whole
  };

  explicit LeadingRestore(Options options)
      : options_(std::move(options)),
        write_({.deadline = options_.deadline, .clock = options_.clock, .before_rows = options_.before_rows}) {}

  absl::uint128 id() const { return options_.order.id; }

  // Messages of other daemons. Ignores messages of other restores; a message out of order is an error of that daemon.
  void OnSums(const RestoreSums& sums);
  void OnReport(const RestoreReport& report);
  void OnProgress(const RestorePartProgress& progress);

  std::optional<HistoryId> history() const override { return HistoryId{id()}; }
  // The next server of this daemon orders the restore again when trainers come again (RollbackOf).
  bool can_redo() const override { return true; }
  std::string RollbackWhy(const Model&) const override { return options_.order.rollback_why; }
  absl::Status Begin() override;
  absl::Status Write(Restorer& restorer) override;
  absl::Status CheckGoesOn() override;
  absl::Status Conclude(const Restorer& restorer) override;
  Restorer::Progress Whole(const Restorer::Progress& own) const override;
  void Cancel() override;

  // Returns why the state cannot become whole: a drain here, or another daemon's error; else OK.
  absl::Status broken() const {
    absl::MutexLock lock(&mu_);
    return FirstFailure();
  }
  // Returns true if daemons may have begun to write.
  bool has_gone() const { return gone_; }
  // Ends the restore with its result here; sends it to other daemons that still wait for it.
  void Finish(const absl::Status& status);

 private:
  // Progress of another daemon.
  struct Peer {
    std::optional<RestorePhase> reached = {};
    absl::Status status = absl::OkStatus();
    Restorer::Progress progress = {};
  };

  template <typename News>
  absl::Status Tell(const News& news);
  // Allow accepts reports up to this phase; Await waits until all nodes have reached it.
  void Allow(RestorePhase phase);
  absl::Status Await(RestorePhase phase) { return Await(phase, options_.deadline); }
  absl::Status Await(RestorePhase phase, SteadyTime deadline);
  // Returns the number of replicas of the nodes that take part.
  int Replicas() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status FirstFailure() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Wakes waiting threads, and stops the write after a failure.
  void SignalChanged() ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns no value while the phase is neither reached nor out of reach.
  std::optional<absl::Status> Reached(RestorePhase phase) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status AbandonedError() const;
  absl::Status LateWriteError() const;
  absl::Status LateError(RestorePhase phase) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status AddSums(const RestoreSums& sums) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  RestoreWrite write_;
  // Used by the restore's own thread.
  bool ordered_ = false;
  bool gone_ = false;
  bool ended_ = false;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<int> nodes_ ABSL_GUARDED_BY(mu_);  // that the order has gone to, this one too
  std::optional<RestorePhase> allowed_ ABSL_GUARDED_BY(mu_);
  std::map<int, Peer> peers_ ABSL_GUARDED_BY(mu_);       // by node
  checkpoint::ContentHashes sums_ ABSL_GUARDED_BY(mu_);  // of all of them
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_LEADING_RESTORE_H_
