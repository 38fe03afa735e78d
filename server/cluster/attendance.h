// Which nodes of a world take part in the next epoch of a model, where it may do without some.
#ifndef PARAMSHARD_SERVER_CLUSTER_ATTENDANCE_H_
#define PARAMSHARD_SERVER_CLUSTER_ATTENDANCE_H_

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/cluster/membership.h"

namespace paramshard::server {

// What node 0 permits.
struct AttendancePolicy {
  // Nodes that an epoch needs at least, node 0 among them, where each holds a replica. Unset: all.
  std::optional<int> min_nodes = {};
  // How long a node that is lost is waited for.
  absl::Duration patience = absl::Seconds(10);
  // How long a node is left out at first whose link to another one is cut.
  absl::Duration first_stay = absl::Seconds(20);
  // How long node 0 waits for what others say of cut links, once one has: they find out at about the same time.
  absl::Duration gathering = absl::Seconds(1);

  // Of a world of that many.
  int Needed(int nodes) const { return min_nodes.value_or(nodes); }
};

// The nodes that the next epoch is to have, ascending, when nobody else is to be waited for. `before` are those of the
// last one: they are waited for while they are here, and for some time when they are lost. Another node takes part when
// it `is_ready`. `may_be_fewer`: an epoch need not have all nodes; then it is without those to be `left_out`, ascending,
// if there are enough others. Requires known ranks.
std::optional<std::vector<int>> NextActive(const Membership& members, const std::vector<int>& before,
                                           absl::FunctionRef<bool(int node)> is_ready, const AttendancePolicy& policy,
                                           bool may_be_fewer, const std::vector<int>& left_out, SteadyTime now);

// How long a node that is here must still stay before it may end an epoch that goes on without it. One that is lost
// again and again has to stay for longer each time, up to 128 times the patience.
absl::Duration HeldBackFor(const Membership& members, int node, const AttendancePolicy& policy, SteadyTime now);
// Whether a node is here, and may.
bool MayReturn(const Membership& members, int node, const AttendancePolicy& policy, SteadyTime now);

// When the next of the nodes that are lost need not be waited for any more; unset: none is waited for.
std::optional<SteadyTime> NextGivenUp(const Membership& members, const AttendancePolicy& policy, SteadyTime now);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_ATTENDANCE_H_
