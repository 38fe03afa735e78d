// Which nodes of a world have no state of a model, and which of the others give them theirs.
#ifndef PARAMSHARD_SERVER_CLUSTER_HEALING_PLAN_H_
#define PARAMSHARD_SERVER_CLUSTER_HEALING_PLAN_H_

#include <optional>
#include <vector>

#include "server/cluster/cluster.h"

namespace paramshard::server {

// What the nodes of a world say of one model, by node.
using ModelReports = std::vector<std::optional<ModelReport>>;

// Nothing tells their states apart, and nothing refers to their ids yet.
bool BeganAlike(const ModelReport& a, const ModelReport& b);
bool IsOneState(const ModelReport& a, const ModelReport& b);

// Every node has made the model. One that has lost it with its server, and has not begun it anew, has not.
bool AreAllMade(const ModelReports& reports);
// Several nodes hold the whole state each.
bool HoldReplicas(const ModelReports& reports, int world_size);

// Who gets the state from whom, where some nodes have none, all others have the same one, and every node that has none
// stands before one that keeps its ranks' client states beside a replica. None where there are no replicas, or not all
// reports.
std::vector<Healing> PlanHealings(const ModelReports& reports, int world_size);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_HEALING_PLAN_H_
