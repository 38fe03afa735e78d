// The daemon's part in its world: its cluster, and on node 0 the coordinator with its server and its decisions.
#ifndef PARAMSHARD_SERVER_PROCESS_WORLD_MEMBER_H_
#define PARAMSHARD_SERVER_PROCESS_WORLD_MEMBER_H_

#include <memory>
#include <stop_token>

#include "absl/status/status.h"
#include "server/base/disk_calls.h"
#include "server/edge/transport.h"
#include "server/observe/metric_registry.h"
#include "server/process/config.h"
#include "server/process/grpc_servers.h"
#include "server/process/keeper_services.h"
#include "server/terms/cluster.h"
#include "server/terms/world_terms.h"
#include "server/world/coordinator_cluster.h"
#include "server/world/decision_log.h"

namespace paramshard::server {

// Joins the world at the daemon's start, and leaves it at its end:
//
//   WorldMember member(options);
//   status = member.Join(devices, stop);
//   ...  member.cluster() ...
//   member.Leave();
//   member.StopServer();
//
// One thread calls its functions, except GiveUp.
class WorldMember {
 public:
  // Everything outlives it.
  struct Options {
    const DaemonConfig* config = nullptr;
    const KeeperServices* keeper = nullptr;
    const Transport* transport = nullptr;
    DiskCalls* disk_calls = nullptr;
    MetricRegistry* metrics = nullptr;
  };
  explicit WorldMember(const Options& options)
      : config_(*options.config),
        keeper_(*options.keeper),
        transport_(*options.transport),
        disk_calls_(options.disk_calls),
        metrics_(options.metrics) {}

  // Joins with so many devices, and waits until the world is complete; `stop` gives up (UNAVAILABLE).
  // DEADLINE_EXCEEDED it was not complete in time; errors of MakeRemoteCluster, DecisionLog::Open and Listen. Called
  // once; after an error only Leave and StopServer may be called.
  absl::Status Join(int devices, const std::stop_token& stop);
  // Not null after Join.
  Cluster* cluster() const { return cluster_; }
  // Cancels waits for other daemons. A single daemon waits for no other; if it is stopped during its start, it still
  // saves the models that it takes over.
  void GiveUp() const;
  // Ends the part in the world: other daemons go on without this one.
  void Leave() const;
  // Ends node 0's server for the other nodes; called after Leave.
  void StopServer() { server_.Stop(); }

 private:
  absl::Status StartCoordinator(int devices, const WorldTerms& terms);
  absl::Status JoinCoordinator(int devices, const WorldTerms& terms, const std::stop_token& stop);
  absl::Status OpenDecisionLog(CoordinatorOptions& options);
  absl::Status ServeOtherNodes();

  const DaemonConfig& config_;
  const KeeperServices& keeper_;
  const Transport& transport_;
  DiskCalls* const disk_calls_;
  MetricRegistry* const metrics_;
  // Destroyed in reverse order: callers before what they call.
  std::unique_ptr<DecisionLog> decision_log_;     // on node 0 of several, with a state_dir
  std::unique_ptr<CoordinatorNode> coordinator_;  // on node 0 of several
  std::unique_ptr<Cluster> own_cluster_;          // elsewhere
  Cluster* cluster_ = nullptr;                    // one of the two
  GrpcServers server_;                            // on node 0 of several
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_WORLD_MEMBER_H_
