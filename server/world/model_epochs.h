// Epochs of one model at the coordinator: they start by plan, make commits and end.
#ifndef PARAMSHARD_SERVER_WORLD_MODEL_EPOCHS_H_
#define PARAMSHARD_SERVER_WORLD_MODEL_EPOCHS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/terms/cluster.h"
#include "server/world/commit_votes.h"
#include "server/world/detached_ranks.h"
#include "server/world/epoch_plan.h"
#include "server/world/rendezvous_store.h"
#include "server/world/world_context.h"

namespace paramshard::server {

// Not thread-safe: called under the coordinator's lock. Decisions are elsewhere: which epoch starts in PlanEpoch, which
// commit is made in CommitVotes.
class ModelEpochs {
 public:
  // `world` outlives it.
  ModelEpochs(std::string name, WorldContext* world);
  ModelEpochs(const ModelEpochs&) = delete;
  ModelEpochs& operator=(const ModelEpochs&) = delete;

  const ModelFacts& facts() const { return facts_; }
  CommitVotes& votes() { return votes_; }
  RendezvousStore& rendezvous() { return rendezvous_; }  // of the running epoch

  // Takes an epoch of another coordinator.
  void AddBefore(const ClosedEpoch& before);
  // Epochs of this model come after that one.
  void SkipEpochs(int64_t last) { facts_.last_epoch = facts_.epoch_floor = last; }

  // Messages of a node. Those about an epoch require that it runs; a node that takes no part cannot end it.
  void Step(int node, const ModelReport& report);
  void Step(int node, const ModelDeleted& deleted);
  // Links to a node that takes no part are ignored. Nodes that report bad links, or end the epoch meanwhile for any
  // reason, hear nothing more of it.
  void Step(int node, const EndEpoch& end);
  void Step(int node, const CommandReports& reports);
  // Ignores a rank that the node does not serve.
  void Step(int node, const RankDetached& detached);
  void Step(int node, const CommandsCarriedOut& done);
  // The node is lost, and not present any more.
  void Lose(int node);

  // Takes a vote. Returns the answer if there is one; nothing while the decision is open.
  std::optional<CommitVotes::Answer> Vote(int node, const CommitVote& vote);
  // Ends the epoch of the commit if it runs.
  absl::StatusOr<CommitDecision> QueryCommit(int node, const CommitQuery& query);

  // Starts the next epoch if its plan says so, and tells those concerned if it does not.
  void TryStart();
  // The same; first ends an epoch with cut links when all nodes have had the time to report theirs.
  void Look();
  // Returns when to look again because of cut links.
  std::optional<SteadyTime> NextLook() const;
  // Returns why no epoch starts although trainers wait, or why the last start was refused, in words. Nothing while an
  // epoch runs or nobody waits.
  std::optional<std::string> WhyNoEpoch() const;
  absl::StatusOr<HealingAnswer> OrderHealing(int donor);

  // All nodes have rolled back to a saved state, or could not.
  void EndRollback(const absl::Status& status);
  // Writes to the log, before anything changes, that a restore on `nodes` replaces the states of all others. A node
  // that is absent may have any history that the coordinator knows. From here on the new history replaces them all,
  // even if the restore fails: its nodes then have no state, or still have one of these histories.
  absl::Status WriteReplaced(const std::string& history, int64_t commit_number, const std::vector<int>& nodes);

  // Returns the nodes that, as things stand, the next epoch is without because their links are cut.
  std::vector<int> LeftOut(SteadyTime now) const;
  // Returns true if the node has all its trainers, and the running epoch goes on without it.
  bool WaitsOutside(int node) const;
  // Answers the calls that wait.
  void Stop();

 private:
  // State of an epoch with cut links, until it ends.
  struct Gathering {
    SteadyTime until;
    std::set<int> gone;  // nodes that have ended the epoch, and may have reported for the next one
  };

  bool MayLeaveOut() const { return server::MayLeaveOut(facts_, world_.members, world_.policy); }
  void Start(const StartEpoch& plan);
  absl::Status WriteBegun(const ModelReport& state, const std::vector<int>& nodes);
  void LogWait(const WaitToStart& wait);
  void Refuse(const absl::Status& why);
  void RefuseNode(int node, const absl::Status& why);
  void End(const absl::Status& why, bool by_votes = false);
  void EndIfAllIsDone();
  // Notes that the node has ended an epoch with cut links.
  void Gather(int node);
  // Ends the epoch with all that was reported of its links.
  void EndGathering();
  // UNAVAILABLE naming the bad links and their consequence.
  absl::Status BadLinksError() const;
  // Handles a returner: a node outside the running epoch that has all its trainers. They wait for the epoch's end, or
  // hear why the node cannot take part.
  void CheckReturner(int node);
  // Ends the epoch if a returner is to take part in the next one, which goes on from the last decided commit.
  void EndForReturners();

  WorldContext& world_;
  ModelFacts facts_;
  CommitVotes votes_;
  int64_t unknown_epoch_ = 0;  // the last epoch, if another coordinator began it and its nodes are not known; else 0
  // Why the last start was refused; OK once an epoch has started, or a node's spec or state has changed.
  absl::Status refused_;
  WaitToStart::For logged_ = {};
  std::optional<Gathering> gathering_;  // of the running epoch, as the rest
  DetachedRanks detached_;
  RendezvousStore rendezvous_;
};

using Models = std::map<std::string, ModelEpochs, std::less<>>;

// Null if no node has reported the model and no other coordinator has known it.
ModelEpochs* Find(Models& models, absl::string_view name);
// Null unless that epoch runs.
ModelEpochs* FindRunning(Models& models, absl::string_view name, int64_t epoch);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_MODEL_EPOCHS_H_
