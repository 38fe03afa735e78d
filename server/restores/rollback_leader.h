// When one daemon has lost its part of a model: all daemons go back to the step that was saved last.
#ifndef PARAMSHARD_SERVER_RESTORES_ROLLBACK_LEADER_H_
#define PARAMSHARD_SERVER_RESTORES_ROLLBACK_LEADER_H_

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/restores/restoration.h"
#include "server/restores/restore_leader.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// At node 0 of several. A daemon whose keeper died with its server comes back empty, or with a state that it cannot go on
// from, and nothing heals it from a replica. As soon as every daemon is here and trainers wait (RollbackNeed), or a
// creation at that daemon does (RestoreWish), node 0 orders a restore of the checkpoint with the largest save serial at
// all of them: those that have the model restore it, the others create it with it. That checkpoint must be one that the
// states which are given up go on from. Where there is none, trainers are told why no epoch starts.
//
//   RollbackLeader rollbacks({.store = &store, .leader = &leader});
//   rollbacks.Begin("m", why);   // returns at once; what comes of it trainers hear
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
  // Waits for those under way, which the leader's drain ends.
  ~RollbackLeader();

  // Does nothing where one of the model is under way.
  void Begin(const std::string& model, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work(const std::string& model, const absl::Status& why);
  // None: whoever creates the model here goes on with it.
  std::optional<absl::Status> GoBack(const std::string& model, const absl::Status& why);
  void JoinFinished();

  const Options options_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<std::string, std::thread> works_ ABSL_GUARDED_BY(mu_);  // by model
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mu_);         // they do nothing more with `works_`
};

// What a model begins with that this daemon of several has lost: with the restore that was cut off, at node 0, else with
// what was saved last. None where nothing is saved. At other nodes node 0 says what it is.
std::optional<WantedRestore> RollbackOf(const ModelStore& store, const std::string& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_ROLLBACK_LEADER_H_
