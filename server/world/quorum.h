// Choice of the nodes that take part in the next epoch of a model.
#ifndef PARAMSHARD_SERVER_WORLD_QUORUM_H_
#define PARAMSHARD_SERVER_WORLD_QUORUM_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/world/membership.h"

namespace paramshard::server {

// Policy of node 0 for epochs with fewer nodes.
struct QuorumPolicy {
  // Smallest number of nodes of an epoch, node 0 included, if each holds a replica. Unset: all.
  std::optional<int> min_nodes = {};
  // How long to wait for a lost node.
  absl::Duration timeout = absl::Seconds(10);
  // How long a node with a cut link is left out the first time.
  absl::Duration first_stay = absl::Seconds(20);
  // How long node 0 gathers reports of cut links after the first one: nodes find out at about the same time.
  absl::Duration gathering = absl::Seconds(1);

  // Returns the smallest number of nodes of an epoch in a world of `nodes`.
  int Needed(int nodes) const { return min_nodes.value_or(nodes); }
};

// Returns the nodes of the next epoch, ascending; unset while it waits for more. It waits for the nodes of the last
// epoch, `before`, while they are present, and for some time after they are lost. Another node takes part if it
// `is_ready`. With `may_be_fewer` the epoch need not have all nodes, and goes without the nodes in `left_out`
// (ascending) if enough others remain. Requires known ranks.
std::optional<std::vector<int>> NextActive(const Membership& members, const std::vector<int>& before,
                                           absl::FunctionRef<bool(int node)> is_ready, const QuorumPolicy& policy,
                                           bool may_be_fewer, const std::vector<int>& left_out, SteadyTime now);

// Returns how long a node that is present must still stay before it may end an epoch that goes on without it. The time
// doubles with each loss of the node, up to 128 times the timeout.
absl::Duration HeldBackFor(const Membership& members, int node, const QuorumPolicy& policy, SteadyTime now);
// Returns true if a node is present and not held back.
bool MayReturn(const Membership& members, int node, const QuorumPolicy& policy, SteadyTime now);

// Returns when the timeout for the next lost node ends; unset: no lost node is waited for.
std::optional<SteadyTime> NextGivenUp(const Membership& members, const QuorumPolicy& policy, SteadyTime now);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_QUORUM_H_
