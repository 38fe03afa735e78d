// Connection of the meshes of all daemons.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_MESH_CONNECTOR_H_
#define PARAMSHARD_SERVER_DATA_PLANE_MESH_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/data_plane/connect_abort.h"
#include "server/data_plane/link_check.h"
#include "server/data_plane/tcp_mesh.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// A mesh in which this daemon takes part.
struct MeshPlan {
  struct Peer {
    MeshMember member;
    int mesh = 0;  // index of this mesh among the plans of the member's daemon
  };
  std::vector<Peer> members;
  int self = 0;
};

struct MeshConnection {
  int node = 0;
  int nodes = 1;                // of the world
  std::vector<MeshPlan> plans;  // of this daemon
  Rendezvous* rendezvous = nullptr;
  absl::Duration timeout;
  std::string listen_address;
  ConnectAbort* abort = nullptr;  // ends connecting from outside; may be null
  Links* links = nullptr;         // get their peers from this call, and are checked; may be null
  std::string epoch = {};         // of the meshes: see MakeMeshTag
};

// Waits for a value that another daemon puts at the rendezvous. DEADLINE_EXCEEDED; the status of an abort, within a
// second.
absl::StatusOr<std::string> AwaitValue(const MeshConnection& connection, int node, absl::string_view key,
                                       SteadyTime deadline);

// Connects every mesh of the plans; all daemons must call it, with plans that fit each other. First all daemons check
// their links at the same time, so that all cut links are known, and no others are taken for cut. UNAVAILABLE naming a
// node that timed out, all nodes that were not reached (see `links`), a rank that could not be connected, or one whose
// connection is of another epoch; RESOURCE_EXHAUSTED no thread; errors of the rendezvous (ABORTED); the abort's status.
absl::StatusOr<std::vector<std::unique_ptr<TcpMesh>>> ConnectMeshes(const MeshConnection& connection);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_MESH_CONNECTOR_H_
