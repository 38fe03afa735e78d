// Plan of healings: which nodes have no state of a model, or an old one, and which nodes give them theirs.
#ifndef PARAMSHARD_SERVER_TERMS_HEALING_PLAN_H_
#define PARAMSHARD_SERVER_TERMS_HEALING_PLAN_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Reports of one model, by node of the world.
using ModelReports = std::vector<std::optional<ModelReport>>;

// Returns true if the two states are the same and nothing refers to their ids yet.
bool BeganAlike(const ModelReport& a, const ModelReport& b);
bool IsOneState(const ModelReport& a, const ModelReport& b);
// Histories that restores replaced while nodes were absent, which may have gone on in them, and the history that all
// nodes go on in since. A state of any other history is for a person to judge.
struct ReplacedHistories {
  std::set<std::string> ids = {};
  std::string by = {};

  // Returns true if a state of `history_id` gives way to a state of `other`, whatever their commit numbers are.
  bool GivesWay(const std::string& history_id, absl::string_view other) const {
    return other == by && ids.contains(history_id);
  }
};

// Returns true if the state of `other` was made from this one, or has replaced it.
bool IsBehind(const ModelReport& report, const ModelReport& other, const ReplacedHistories& replaced = {});

// Returns the node whose client states `node` keeps besides its own if daemons hold replicas, so that it can heal that
// node. `active`: the nodes of the epoch, ascending, `node` among them.
int PreviousNode(int node, const std::vector<int>& active);

// Returns true if each of the nodes has made the model. A node that has lost it with its server has not, until it
// begins the model anew.
bool AreAllMade(const ModelReports& reports, const std::vector<int>& nodes);
// Returns true if the report has node 0's spec, or node 0 has none. A node with another spec is refused and decides
// nothing, since node 0 takes part in every epoch.
bool HasLeadersSpec(const ModelReports& reports, const ModelReport& report);
// Returns true if several nodes hold the whole state each.
bool HoldReplicas(const ModelReports& reports, int world_size);

// Returns true if node 0 has no state, and possibly none of these nodes that have one was in the last epoch.
// `min_nodes`: see PlanHealings.
bool AreTooFewToTell(const ModelReports& reports, const std::vector<int>& active, int min_nodes);

// Plans the healings of an epoch of the `active` nodes, of which some have no state or an old one, and all others the
// same state. At least `min_nodes` took part in every earlier epoch. If that is all nodes, no state is old. If it is
// fewer, a node must be known to have the newest state: node 0, which takes part in every epoch, or one of so many that
// no epoch was without all of them. A node gets the state from the node that keeps its ranks' client states. If epochs
// may have fewer nodes, there may be no such node: then from the next node, with the client states of that node's own
// ranks. Empty if the newest state is not known, without replicas, or if reports are missing. `replaced`: see IsBehind.
std::vector<Healing> PlanHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                  int min_nodes, const ReplacedHistories& replaced = {});

// The same by a person's order that the state of node `right` counts, which is one of the nodes and has a state: all
// nodes with another state or none get it. The donor is a node with that state that keeps their ranks' client states,
// else `right` itself, with the client states of its own ranks. Empty if all have the state, specs differ, there are no
// replicas, reports are missing, or a node has a state that it may not give up because the person has not seen it.
std::vector<Healing> PlanOrderedHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                         int right, absl::FunctionRef<bool(int node)> may_give_up);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_HEALING_PLAN_H_
