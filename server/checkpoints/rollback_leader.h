// Rollback of all daemons to the step that was saved last, when one daemon has lost its part of a model.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_ROLLBACK_LEADER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_ROLLBACK_LEADER_H_

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/restoration.h"
#include "server/checkpoints/restore_leader.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Runs at node 0 of several daemons. A daemon whose keeper died with its server comes back empty, or with a state that
// it cannot go on from, and no replica can heal it. As soon as every daemon is here and trainers wait (RollbackNeed),
// or a creation at that daemon waits (RestoreWish), node 0 orders a restore of the checkpoint with the largest save
// serial at all daemons: daemons with the model restore it, the others create it from the checkpoint. The states that
// are given up must go on from that checkpoint. If there is no such checkpoint, trainers are told why no epoch starts.
//
//   RollbackLeader rollbacks({.store = &store, .leader = &leader});
//   rollbacks.Begin("m", why);   // returns at once; trainers get the result
//
// A model that node 0 itself has lost goes back when its trainers create it: CreateOrRestore.
//
// Thread-safe.
class RollbackLeader {
 public:
  struct Options {
    ModelStore* store = nullptr;      // outlives this
    RestoreLeader* leader = nullptr;  // likewise
  };

  explicit RollbackLeader(Options options) : options_(options) {}
  // Waits for rollbacks in progress, which the leader's drain ends.
  ~RollbackLeader();

  // Does nothing if a rollback of the model is in progress.
  void Begin(const std::string& model, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work(const std::string& model, const absl::Status& why);
  // Returns no value if the next creation of the model here goes on with the rollback.
  std::optional<absl::Status> GoBack(const std::string& model, const absl::Status& why);
  void JoinFinished();

  const Options options_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<std::string, std::thread> works_ ABSL_GUARDED_BY(mu_);  // by model
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);         // they no longer use `works_`
};

// Returns the restore for a model that this daemon of several has lost: at node 0 the restore that was cut off, else
// the latest checkpoint. No value if nothing is saved. At other nodes node 0 makes the choice.
std::optional<WantedRestore> RollbackOf(const ModelStore& store, const std::string& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_ROLLBACK_LEADER_H_
