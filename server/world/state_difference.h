// Error texts for nodes whose states of one model differ.
#ifndef PARAMSHARD_SERVER_WORLD_STATE_DIFFERENCE_H_
#define PARAMSHARD_SERVER_WORLD_STATE_DIFFERENCE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/terms/healing_plan.h"
#include "server/world/membership.h"

namespace paramshard::server {

// Returns "node 1 (ranks 2..3) and node 2 (ranks 4..5)"; counts the rest if a message has no room for all.
std::string NodesText(const std::vector<int>& nodes, const Membership& members);

// Returns the states of `nodes`, which have reported. Names nodes with the same state together, and counts the rest if
// there are more than a message has room for.
std::string StatesText(const ModelReports& reports, const std::vector<int>& nodes, const Membership& members);

// FAILED_PRECONDITION naming all these states, of which at least two differ, and the remedies.
absl::Status StatesDifferError(const std::string& model, const ModelReports& reports, const std::vector<int>& nodes,
                               const Membership& members);

// FAILED_PRECONDITION: these two nodes, which have reported, have different specs.
absl::Status SpecsDifferError(const std::string& model, const ModelReports& reports, int node, int other,
                              const Membership& members);

// Returns the command that heals the model, for nodes that hold replicas.
std::string HealCommand(const std::string& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_STATE_DIFFERENCE_H_
