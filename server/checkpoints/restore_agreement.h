// Agreement of a world's daemons about a restore: node 0 leads it, the others follow.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_AGREEMENT_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_AGREEMENT_H_

#include <cstdint>
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
#include "server/checkpoints/checkpoint_loader.h"
#include "server/models/model.h"
#include "server/terms/restore_message.h"

namespace paramshard::server {

// One daemon's part in a restore, by its role; restore_message.h has the messages:
//
//   step    leader                                          follower
//   Agree   sends the order, waits until all are ready,     reports that it is ready, waits for the permission
//           permits all to begin
//   Load    loads its rows                                  loads its rows, reports its progress
//   Verify  waits until all have loaded, compares the       sends its content hashes, reports that it has loaded,
//           sums, sends the end, waits for all              waits for the end
//   Finish  sends the error, if there was one               reports the result
//
// The restore ends as soon as one daemon fails or drains, and at the deadline, also while rows are written: rows that
// will not be used are not waited for. A creation without a waiting caller is given up while other daemons are not
// ready; after that it goes on: the others lose nothing, and the next creation finds the model.
//
// One thread takes the steps in this order, each at most once; any thread may call OnMessage() and Cancel().
class RestoreAgreement {
 public:
  enum class Role : uint8_t {
    kAlone,     // this daemon has all ranks: it agrees with nobody
    kLeader,    // node 0 of several
    kFollower,  // another node
  };
  // Points where tests hold a restore back.
  enum class Point : uint8_t {
    kReady,    // a follower is about to report that it is ready
    kGo,       // the leader is about to permit all to begin
    kRows,     // a daemon is about to load its rows
    kPlanes,   // planes are being encoded, with rows that are all loaded
    kWritten,  // rows and planes are there: a follower is about to report it, the leader to wait for the others
    kEnd,      // the leader is about to report that the state is whole
  };

  struct Options {
    Role role = Role::kAlone;
    Cluster* cluster = nullptr;  // outlives the agreement; not used alone
    std::string model = {};
    RestoreOrder order = {};               // that a leader sends, with the time that is left, or a follower got
    checkpoint::ContentHashes saved = {};  // of the checkpoint, for a leader
    int replicas = 1;                      // of the world; not for a follower
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();  // outlives the agreement
    // Returns true if no caller waits for the model that a leader creates; null if it creates none. Does not block.
    std::function<bool()> is_abandoned = nullptr;
    std::function<void(Point)> at = [](Point) {};
  };

  explicit RestoreAgreement(Options options) : options_(std::move(options)) {}

  const std::string& model() const { return options_.model; }
  const RestoreOrder& order() const { return options_.order; }

  // Returns the history that begins at every daemon; no value: the restored model draws it.
  std::optional<HistoryId> history() const;
  // Returns true if this daemon's next server can repeat a restore that is cut off, or order all daemons to repeat it.
  bool can_redo() const { return options_.role != Role::kFollower; }
  // Returns true if node 0, which is another daemon, creates the model from the checkpoint.
  bool leader_creates() const { return options_.role == Role::kFollower && order().creates; }
  // Returns why all daemons roll back to a saved state without a request; empty for a requested restore. `model` is
  // this daemon's model.
  std::string RollbackWhy(const Model& model) const;

  // Requires that trainers and readers are held off, and that nothing has changed. After an error nothing may change.
  absl::Status Agree();
  // Errors of CheckpointLoader::Load; the reason why the restore is over elsewhere; DEADLINE_EXCEEDED.
  absl::Status Load(CheckpointLoader& loader);
  // Checks, while planes are encoded, that they will be used. Does not block. Errors of Load.
  absl::Status CheckContinue();
  // After an error the state must not be used.
  absl::Status Verify(const CheckpointLoader& loader);
  // Called when the model's import lock is released at a follower: node 0 may order the next restore then.
  void Finish(const absl::Status& status);

  // Takes a message about this restore. Ignores messages about other restores; a message out of order is an error of
  // its sender.
  void OnMessage(const RestoreMessage& message);
  // Ends waits and loading soon, with CANCELLED.
  void Cancel();

  // Returns the progress of all daemons, as far as this daemon knows it; `own` is its own progress. Thread-safe.
  CheckpointLoader::Progress Whole(CheckpointLoader::Progress own) const;
  // Returns why the state cannot become whole: a drain here, or another daemon's error; else OK.
  absl::Status failure() const;
  // Returns true if the leader may have let daemons begin.
  bool has_gone() const { return gone_; }

 private:
  // Progress of a follower, at the leader.
  struct Peer {
    std::optional<RestorePhase> reached = {};
    absl::Status status = absl::OkStatus();
    CheckpointLoader::Progress progress = {};
  };

  absl::Status Lead();
  absl::Status Follow();
  template <typename Message>
  absl::Status Tell(const Message& message);
  void Report(RestorePhase phase, const absl::Status& status = absl::OkStatus());
  void TellProgress(const CheckpointLoader& loader);
  void TellSums(const checkpoint::ContentHashes& sums);

  void Take(const RestoreGo& go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const RestoreEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const RestoreReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const RestoreSums& sums) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(const RestorePartProgress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AddSums(const RestoreSums& sums) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the number of replicas of the nodes that take part.
  int Replicas() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Allow accepts reports up to this phase; Await waits until all have reached it, and a follower until node 0 says so.
  void Allow(RestorePhase phase);
  absl::Status Await(RestorePhase phase, SteadyTime deadline);
  bool IsReached(RestorePhase phase) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns the followers that have not reached the phase.
  std::vector<int> Behind(RestorePhase phase) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status Failure() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Wakes waiting threads, and stops loading after a failure.
  void SignalChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stops loading if `why` is an error; the first one holds.
  void StopFor(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopIfLate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LateError(RestorePhase phase) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Looks at the deadline and sends the progress a few times a second, until loading is over.
  void Watch(const CheckpointLoader& loader);

  const Options options_;
  // Used by the restore's own thread.
  bool ordered_ = false;
  bool gone_ = false;
  bool ended_ = false;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  CheckpointLoader* loading_ ABSL_GUARDED_BY(mu_) = nullptr;  // null while nothing is loaded
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);                 // why loading is stopped
  // At a follower.
  bool may_begin_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  // At the leader.
  std::vector<int> nodes_ ABSL_GUARDED_BY(mu_);  // that the order has gone to, this one too
  std::optional<RestorePhase> allowed_ ABSL_GUARDED_BY(mu_);
  std::map<int, Peer> peers_ ABSL_GUARDED_BY(mu_);       // by node
  checkpoint::ContentHashes sums_ ABSL_GUARDED_BY(mu_);  // of all of them
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_AGREEMENT_H_
