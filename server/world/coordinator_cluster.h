// Cluster of node 0, whose process runs the coordinator.
#ifndef PARAMSHARD_SERVER_WORLD_COORDINATOR_CLUSTER_H_
#define PARAMSHARD_SERVER_WORLD_COORDINATOR_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/terms/cluster.h"
#include "server/terms/world_terms.h"
#include "server/world/decision_log.h"
#include "server/world/quorum.h"

namespace grpc {
class AuthContext;
class Service;
}  // namespace grpc

namespace paramshard::server {

// A world of one daemon. A vote is answered at once. RESOURCE_EXHAUSTED no thread.
absl::StatusOr<std::unique_ptr<Cluster>> MakeLocalCluster(int devices);

struct CoordinatorOptions {
  int nodes = 1;
  int devices = 1;        // of this node
  WorldTerms terms = {};  // of this node; every node that joins has the same
  // Epochs that an earlier node 0 has left.
  std::vector<ClosedEpoch> closed = {};
  DecisionLog* log = nullptr;           // outlives the cluster
  std::vector<int> device_counts = {};  // by node; empty: not known before all have joined
  QuorumPolicy quorum = {};
  // Returns OK if a caller may speak for a node.
  std::function<absl::Status(const grpc::AuthContext& caller, int node)> check_speaker =
      [](const grpc::AuthContext&, int) { return absl::OkStatus(); };
  absl::Duration vote_wait = kVoteWait;  // of this node
};

// Node 0 of a world. Register `service` with the server on which the other nodes reach this one, before that starts. To
// end: Stop the cluster, shut the server down, then destroy this.
//
//   ASSIGN_OR_RETURN(CoordinatorNode node, MakeCoordinatorCluster({.nodes = 2, .devices = 4}));
//   builder.RegisterService(node.service.get());
//   ... BuildAndStart() ...
//   status = node.cluster->AwaitWorld(absl::Minutes(5));
struct CoordinatorNode {
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<grpc::Service> service;  // v1.ClusterService; uses the cluster

  CoordinatorNode(std::unique_ptr<Cluster> cluster, std::unique_ptr<grpc::Service> service);
  CoordinatorNode(CoordinatorNode&&) noexcept;
  ~CoordinatorNode();
};

// Requires nodes >= 1 and devices >= 1. RESOURCE_EXHAUSTED no thread.
absl::StatusOr<CoordinatorNode> MakeCoordinatorCluster(const CoordinatorOptions& options);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COORDINATOR_CLUSTER_H_
