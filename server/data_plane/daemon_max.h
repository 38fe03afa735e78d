// Largest values over all daemons.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_DAEMON_MAX_H_
#define PARAMSHARD_SERVER_DATA_PLANE_DAEMON_MAX_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/base/steady_time.h"
#include "server/data_plane/mesh.h"

namespace paramshard::server {

// Exchanges `values`, in host memory and equally many on all daemons, with the first member of every other node, and
// keeps the largest. Called on the first member of each node. FAILED_PRECONDITION a peer is at another command (names
// both); else the mesh's errors.
absl::Status MaxOverDaemons(Mesh& mesh, int64_t number, absl::Span<float> values, SteadyTime deadline);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_DAEMON_MAX_H_
