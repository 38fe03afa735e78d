// Decides if the state of this daemon may begin an epoch that node 0 announces. Pure functions.
#ifndef PARAMSHARD_SERVER_MODELS_EPOCH_ADMISSION_H_
#define PARAMSHARD_SERVER_MODELS_EPOCH_ADMISSION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/data_plane/topology.h"
#include "server/models/replacement.h"
#include "server/terms/cluster.h"
#include "server/terms/history.h"

namespace paramshard::server {

// Returns ABORTED if the epoch's nodes cannot be those of an epoch of this daemon.
absl::Status CheckActive(const EpochStart& start, const Topology& topology);

// Returns the healing of the node, null if it is not healed. Points into `start`.
const Healing* HealingOf(const EpochStart& start, int node);

// Returns ABORTED if there is a state here that the other daemons have not gone on from.
absl::Status CheckMayBeHealed(const EpochStart& start, const Healing& healing, const PresentState& present);

// Returns the history of a state that is not healed: the id that all daemons agree on, or, after a fork, the history
// that begins with the epoch. ABORTED if they have agreed on another state.
absl::StatusOr<History> HistoryInEpoch(const EpochStart& start, const PresentState& present);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_EPOCH_ADMISSION_H_
