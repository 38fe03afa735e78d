// Plan of a model's next epoch: a pure function of what the coordinator knows.
#ifndef PARAMSHARD_SERVER_WORLD_EPOCH_PLAN_H_
#define PARAMSHARD_SERVER_WORLD_EPOCH_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/steady_time.h"
#include "server/terms/cluster.h"
#include "server/terms/healing_plan.h"
#include "server/world/healing_order.h"
#include "server/world/membership.h"
#include "server/world/quorum.h"

namespace paramshard::server {

// Knowledge of one model.
struct ModelFacts {
  std::string name = {};
  ModelReports reports = {};      // by node
  std::vector<bool> is_new = {};  // by node: its report is newer than the start of the last epoch
  std::vector<int> active = {};   // nodes of the last epoch, ascending; all before the first one
  // Nodes that the next epoch waits for while they may come, ascending: the nodes of the last epoch with a commit, less
  // those that later epochs had to go without. Before the first epoch, all nodes that may take part.
  std::vector<int> awaited = {};
  std::string history_id = {};  // of the last epoch
  int64_t last_epoch = 0;
  int64_t epoch_floor = 0;  // epochs up to this one belonged to an erased model, or to another coordinator
  bool running = false;
  std::vector<ClosedEpoch> before = {};  // epochs of another coordinator, one for each history
  ReplacedHistories replaced = {};
  std::optional<HealingOrder> order = {};
  std::optional<absl::Status> rolls_back = {};  // why all nodes were told to roll back; unset once they have

  // Returns true if the node takes part in the last epoch.
  bool IsActive(int node) const;
  // Returns true if any node has the model.
  bool IsReported() const;
};

// Knowledge of the world. `members` and `policy` outlive it.
struct WorldFacts {
  const Membership& members;
  const QuorumPolicy& policy;
  std::vector<int> left_out = {};  // nodes with cut links, ascending
  bool has_saves = false;          // a saved state to roll back to may exist
  SteadyTime now = {};
};

// The epoch starts with these nodes, after these healings.
struct StartEpoch {
  std::vector<int> nodes;  // ascending
  std::vector<Healing> healings = {};
};

// No epoch starts until something changes.
struct WaitToStart {
  // kFirstEpoch: all nodes, for the first epoch of a history. kDonor: of an order to heal. kNewest: a node that may have
  // the newest state. kState: a refusal nobody waits for.
  enum class For : uint8_t { kTrainers, kNodes, kFirstEpoch, kDonor, kNewest, kState };
  For what = For::kTrainers;
  std::string why;
};

// The trainers that wait are told why no epoch starts. With `nodes`, only these nodes are refused, each for its own
// reason; the others go on without them, and a new plan is made.
struct RefuseToStart {
  absl::Status why = {};
  std::map<int, absl::Status> nodes = {};
};

// All nodes roll back to a saved state: one has lost its part or begins anew, or the newest commit is lost.
struct RollBack {
  absl::Status why;
};

// The ordered donor has another state now, or none: the order ends, and a new plan is made.
struct DropOrder {};

using EpochPlan = std::variant<StartEpoch, WaitToStart, RefuseToStart, RollBack, DropOrder>;

// Plans the next epoch of a model that has none. The ranks of node 0 and of every other node that takes part are
// attached, and all nodes hold one state, or differences that replicas heal.
EpochPlan PlanEpoch(const ModelFacts& model, const WorldFacts& world);

// Returns the plan in words, as "waits: node 1 (ranks 2..3) is absent" or "waits for rank 1 (1 of 2 attached)".
std::string ToText(const EpochPlan& plan);

// Returns true if the node has reported a trainer of each of its ranks. Requires known ranks.
bool IsAttached(const ModelFacts& model, const Membership& members, int node);
// Returns true if trainers wait for an epoch.
bool HasWaitingTrainers(const ModelFacts& model);
bool IsOrderedDonor(const ModelFacts& model, int node);
// Returns true if nodes hold replicas, and epochs of this model may have fewer of them.
bool MayBeFewer(const ModelFacts& model, const Membership& members);
// Returns true if MayBeFewer and the policy permits it.
bool MayLeaveOut(const ModelFacts& model, const Membership& members, const QuorumPolicy& policy);
// Returns the first node that is not healed. Requires that there is one.
int FirstWithState(const std::vector<int>& nodes, const std::vector<Healing>& healings);

// FAILED_PRECONDITION `node` has another spec than `other`, which was in the last epoch, or a state from which the
// others have not gone on to this commit.
absl::Status CheckMayReturn(const ModelFacts& model, const Membership& members, int node, int other,
                            absl::string_view history_id, int64_t commit_number);

// Adds to a DATA_LOSS the states that are left, if a person may say which one counts.
absl::Status WithWayOut(const ModelFacts& model, const Membership& members, const absl::Status& why);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_EPOCH_PLAN_H_
