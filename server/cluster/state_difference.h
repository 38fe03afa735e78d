// In words: which states of a model nodes have that are to have one.
#ifndef PARAMSHARD_SERVER_CLUSTER_STATE_DIFFERENCE_H_
#define PARAMSHARD_SERVER_CLUSTER_STATE_DIFFERENCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/membership.h"
#include "server/terms/healing_plan.h"

namespace paramshard::server {

// Of `nodes` that have reported. Nodes with one state are named together; of more than a message has room for it says
// how many there are.
std::string StatesText(const ModelReports& reports, const std::vector<int>& nodes, const Membership& members);

// FAILED_PRECONDITION with all these states, of which at least two differ, and the ways out.
absl::Status StatesDifferError(const std::string& model, const ModelReports& reports, const std::vector<int>& nodes,
                               const Membership& members);

// FAILED_PRECONDITION: these two, which have reported, have different specs.
absl::Status SpecsDifferError(const std::string& model, const ModelReports& reports, int node, int other,
                              const Membership& members);

// The way out where nodes hold replicas. `model` is its name.
std::string HealCommand(const std::string& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_STATE_DIFFERENCE_H_
