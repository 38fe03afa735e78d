// Brings the meshes of all daemons together.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_MESH_CONNECTOR_H_
#define PARAMSHARD_SERVER_COLLECTIVE_MESH_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"
#include "server/collective/connect_abort.h"
#include "server/collective/link_check.h"
#include "server/collective/tcp_mesh.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// One mesh that this daemon takes part in.
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
  ConnectAbort* abort = nullptr;  // ends the connecting from outside; may be null
  Links* links = nullptr;         // which this call makes known, and tries; may be null
  std::string epoch = {};         // that the meshes are of: see MakeMeshTag
};

// Returns what another daemon has put at the rendezvous, or will. DEADLINE_EXCEEDED, and at an abort its status, within
// a second.
absl::StatusOr<std::string> AwaitValue(const MeshConnection& connection, int node, absl::string_view key,
                                       SteadyTime deadline);

// Connects every mesh of the plans; all daemons must call it, with plans that fit each other. First each tries to reach
// all others, at the same time, so that all links that are cut are known, and no other one is held to be.
// UNAVAILABLE naming a node that did not come within the timeout, all nodes that were not reached (see `links`), a rank
// that could not be connected, or one whose connection is not of the epoch; RESOURCE_EXHAUSTED no thread; the
// rendezvous' own errors (ABORTED); what the connection's abort says.
absl::StatusOr<std::vector<std::unique_ptr<TcpMesh>>> ConnectMeshes(const MeshConnection& connection);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_MESH_CONNECTOR_H_
