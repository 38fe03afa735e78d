// Which nodes of a world have no state of a model, or an old one, and which of the others give them theirs.
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

// What the nodes of a world say of one model, by node.
using ModelReports = std::vector<std::optional<ModelReport>>;

// Nothing tells their states apart, and nothing refers to their ids yet.
bool BeganAlike(const ModelReport& a, const ModelReport& b);
bool IsOneState(const ModelReport& a, const ModelReport& b);
// Histories that restores have replaced while nodes were away, which may have gone on in them; and the one that all go
// on in since: a state of any other history is for a person to judge.
struct ReplacedHistories {
  std::set<std::string> ids = {};
  std::string by = {};

  // A state of this history is nothing beside one of the other, whatever their commit numbers are.
  bool GivesWay(const std::string& history_id, absl::string_view other) const {
    return other == by && ids.contains(history_id);
  }
};

// Whether the state of `other` was made from this one, or has taken its place.
bool IsBehind(const ModelReport& report, const ModelReport& other, const ReplacedHistories& replaced = {});

// The node whose ranks' client states this one keeps beside its own, where daemons hold replicas: who heals that node has
// them. `active`: the nodes of the epoch, ascending, this one among them.
int PreviousNode(int node, const std::vector<int>& active);

// Each of the nodes has made the model. One that has lost it with its server, and has not begun it anew, has not.
bool AreAllMade(const ModelReports& reports, const std::vector<int>& nodes);
// Node 0 takes part in every epoch: who has another spec is refused, and decides nothing. True while node 0 has none.
bool HasLeadersSpec(const ModelReports& reports, const ModelReport& report);
// Several nodes hold the whole state each.
bool HoldReplicas(const ModelReports& reports, int world_size);

// Node 0 has no state, and of these nodes maybe none that has one was in the last epoch. `min_nodes`: PlanHealings.
bool AreTooFewToTell(const ModelReports& reports, const std::vector<int>& active, int min_nodes);

// Who gets the state from whom in an epoch of the `active` nodes, of which some have no state, or an old one, and all
// others the same one. `min_nodes` of the world took part in any epoch before: where that is all of them none has an old
// state; where it is fewer, one of the nodes that have one is known to have the newest: node 0, which takes part always,
// or some of so many that no epoch was without any of them. A node gets the state from the one that keeps its ranks'
// client states. Where an epoch may be without it nobody may keep any: then from the next one, with those of that one's
// own ranks. None where nobody can tell, where there are no replicas, or not all reports. `replaced`: IsBehind.
std::vector<Healing> PlanHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                  int min_nodes, const ReplacedHistories& replaced = {});

// The same where a person has said that the state of node `right`, which is one of the nodes and has one, counts: all
// nodes that have another one, or none, get it. Who keeps their ranks' client states beside that state gives it to them,
// else `right` itself, with those of its own ranks. None where all have it, where specs differ, where there are no
// replicas, not all reports, or where one has a state that it may not give up, for the person has not seen it.
std::vector<Healing> PlanOrderedHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                         int right, absl::FunctionRef<bool(int node)> may_give_up);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_HEALING_PLAN_H_
