// The world as a node other than 0 sees it: the coordinator is reached over gRPC.
#ifndef PARAMSHARD_SERVER_CLUSTER_REMOTE_CLUSTER_H_
#define PARAMSHARD_SERVER_CLUSTER_REMOTE_CLUSTER_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/files.h"
#include "server/metrics/metric_registry.h"
#include "server/terms/cluster.h"
#include "server/terms/world_terms.h"

namespace grpc {
class ChannelCredentials;
}

namespace paramshard::server {

struct RemoteOptions {
  int node = 1;
  int nodes = 2;                    // as node 0 has been told
  int devices = 1;                  // of this node
  std::string coordinator_address;  // of node 0's server: "127.0.0.1:7777"
  WorldTerms terms = {};            // that node 0 has too
  // With which it is reached, made anew for each connection that replaces another one; null: in the clear.
  std::function<std::shared_ptr<grpc::ChannelCredentials>()> make_credentials = nullptr;
  // What such credentials show now; null: nothing. Is there another certificate than the connection's, a second
  // connection takes its place, and epochs go on.
  std::function<absl::StatusOr<tls::Certificate>()> own_certificate = nullptr;
  absl::Duration renewal_period = absl::Seconds(2);  // how often that is looked for
  absl::Duration join_timeout = absl::Minutes(5);
  // How long a vote waits for the word of a node 0 that does not answer.
  absl::Duration doubt_timeout = absl::Minutes(5);
  // How long another daemon may have this one's number at node 0, which may not know yet that the one before is gone.
  absl::Duration ghost_timeout = absl::Seconds(20);
  std::stop_token stop = {};                            // gives up joining
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the cluster
};

// Joins the world; returns when node 0 has accepted this node (then AwaitWorld waits for the others). While the
// connection to node 0 is lost it is tried again, with growing pauses, until Stop; every epoch that ran ends with
// UNAVAILABLE naming node 0.
//
// Errors: UNAVAILABLE node 0 cannot be reached within join_timeout or before `stop`; ALREADY_EXISTS a daemon that
// stays has the node number; INVALID_ARGUMENT, FAILED_PRECONDITION, PERMISSION_DENIED node 0 refuses this node (says
// why); RESOURCE_EXHAUSTED no thread.
absl::StatusOr<std::unique_ptr<Cluster>> MakeRemoteCluster(const RemoteOptions& options);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_REMOTE_CLUSTER_H_
