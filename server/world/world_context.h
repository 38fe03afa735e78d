// The world that all models of a coordinator share: its nodes, their links, the ways to them, and the log.
#ifndef PARAMSHARD_SERVER_WORLD_WORLD_CONTEXT_H_
#define PARAMSHARD_SERVER_WORLD_WORLD_CONTEXT_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/terms/node_messages.h"
#include "server/terms/world_terms.h"
#include "server/world/bad_link_tracker.h"
#include "server/world/decision_log.h"
#include "server/world/epoch_plan.h"
#include "server/world/membership.h"
#include "server/world/quorum.h"
#include "server/world/waiters.h"

namespace paramshard::server {

// Receiver of the coordinator's messages to one node. Called in order, under the coordinator's lock: an implementation
// returns at once (it queues the message) and does not call the coordinator.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  // After Moved there is no other call. Probe is told outside the coordinator's lock.
  virtual void Tell(const ToNode& message) = 0;
  // The last call to this sink, after which the node is ignored. May be called outside the coordinator's lock.
  virtual void OnStop() = 0;
};

// Guarded by the coordinator's mutex, as all that refers to it.
struct WorldContext {
  // `mu`, the mutex, and `terms`, of node 0, outlive it.
  WorldContext(absl::Mutex* mu, int nodes, const WorldTerms& terms, QuorumPolicy policy, DecisionLog* log)
      : mu(mu), terms(terms), policy(policy), log(log), members(nodes), links(policy.first_stay), sinks(nodes) {}

  // Lock for changes: waits until no call to the log is in progress, and gives pending answers after the mutex is
  // released. Calls that only look take the mutex itself and do not wait for the log's disk; they
  // may end stays of nodes with cut links that are over.
  class ABSL_SCOPED_LOCKABLE Lock {
   public:
    // `mu`: of the world.
    Lock(absl::Mutex* mu, WorldContext* world) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu);
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() ABSL_UNLOCK_FUNCTION();

   private:
    absl::Mutex* const mu_;
    WorldContext* const world_;
  };

  // Does nothing for a node that is absent.
  void Tell(int node, const ToNode& message);
  void TellNodes(const std::vector<int>& nodes, const ToNode& message);
  void TellAll(const ToNode& message);
  void TellFollowers(const ToNode& message);

  // Runs a call to the log without the mutex: a disk may be slow, and calls that only look are answered meanwhile. The
  // decision is made by then, but no node is told; other changes wait, because every Lock does.
  absl::Status WriteInLog(absl::FunctionRef<absl::Status()> write);

  // Ends stays of nodes with cut links that are over by now.
  WorldFacts Facts();
  // UNAVAILABLE naming a missing node.
  absl::Status CheckAllPresent(absl::string_view operation, absl::string_view model) const;
  static absl::Status StoppedError();

  // Constant after construction.
  absl::Mutex* const mu;
  const WorldTerms& terms;
  const QuorumPolicy policy;
  DecisionLog* const log;  // takes epochs and decisions before any node is told; may be null

  SteadyCondVar changed;
  SteadyCondVar written;
  bool is_writing = false;  // to the log
  PendingAnswers answers;   // given after the mutex is released
  Membership members;
  BadLinkTracker links;
  std::vector<NodeSink*> sinks;                         // by node; null if it is absent
  std::map<std::string, SaveOrder, std::less<>> saves;  // in progress, by model: decisions carry the order
  bool stopped = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_WORLD_CONTEXT_H_
