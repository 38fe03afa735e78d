// Cluster of a node other than 0, which reaches the coordinator over gRPC.
#ifndef PARAMSHARD_SERVER_WORLD_REMOTE_CLUSTER_H_
#define PARAMSHARD_SERVER_WORLD_REMOTE_CLUSTER_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/files.h"
#include "server/observe/metric_registry.h"
#include "server/terms/cluster.h"
#include "server/terms/world_terms.h"

namespace grpc {
class ChannelCredentials;
}

namespace paramshard::server {

struct RemoteOptions {
  int node = 1;
  int nodes = 2;                    // as at node 0
  int devices = 1;                  // of this node
  std::string coordinator_address;  // of node 0's server: "127.0.0.1:7777"
  WorldTerms terms = {};            // as at node 0
  std::string address = {};         // where mirrors reach this node; empty: nowhere
  // Makes the credentials of each new connection to node 0; null: in the clear.
  std::function<std::shared_ptr<grpc::ChannelCredentials>()> make_credentials = nullptr;
  // Returns the certificate that new credentials would show; null: none. If it differs from the connection's
  // certificate, a second connection replaces the first one while epochs go on.
  std::function<absl::StatusOr<tls::Certificate>()> own_certificate = nullptr;
  absl::Duration renewal_period = absl::Seconds(2);  // between two looks for a renewed certificate
  absl::Duration join_timeout = absl::Minutes(5);
  // How long a vote waits for a node 0 that does not answer.
  absl::Duration doubt_timeout = absl::Minutes(5);
  // How long node 0 may take to notice that the daemon that had this node number before is gone.
  absl::Duration ghost_timeout = absl::Seconds(20);
  std::stop_token stop = {};                            // gives up joining
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the cluster
};

// Joins the world; returns when node 0 has accepted this node (then AwaitWorld waits for the others). When the
// connection to node 0 is lost, all running epochs end with UNAVAILABLE naming node 0, and the node rejoins, with
// growing pauses between attempts, until Stop.
//
// Errors: UNAVAILABLE node 0 cannot be reached within join_timeout or before `stop`; ALREADY_EXISTS a daemon that
// stays has the node number; INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED node 0 refuses this node (says
// why); RESOURCE_EXHAUSTED no thread.
absl::StatusOr<std::unique_ptr<Cluster>> MakeRemoteCluster(const RemoteOptions& options);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_REMOTE_CLUSTER_H_
