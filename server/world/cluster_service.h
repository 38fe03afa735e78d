// gRPC service of node 0, through which other nodes reach the coordinator.
#ifndef PARAMSHARD_SERVER_WORLD_CLUSTER_SERVICE_H_
#define PARAMSHARD_SERVER_WORLD_CLUSTER_SERVICE_H_

#include <functional>
#include <utility>

#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/observe/log_throttle.h"
#include "server/world/coordinator.h"
#include "server/world/coordinator_cluster.h"
#include "server/world/node_stream_registry.h"
#include "server/world/unidentified_streams.h"

namespace paramshard::server {

// gRPC service in front of Coordinator. Handlers check a request, call the coordinator and convert its answer. Stopping
// the coordinator ends them all. Calls that wait for votes or values hold no thread.
class ClusterServiceImpl final : public v1::ClusterService::WithCallbackMethod_Vote<
                                     v1::ClusterService::WithCallbackMethod_GetValue<v1::ClusterService::Service>> {
 public:
  // Returns OK if the caller may speak for a node.
  using SpeakerCheck = std::function<absl::Status(const grpc::AuthContext& caller, int node)>;

  // `coordinator` outlives the service.
  explicit ClusterServiceImpl(Coordinator* coordinator, SpeakerCheck check_speaker = CoordinatorOptions().check_speaker)
      : coordinator_(coordinator), streams_(coordinator), check_speaker_(std::move(check_speaker)) {}

  grpc::Status Join(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream) override;
  grpc::ServerUnaryReactor* Vote(grpc::CallbackServerContext* context, const v1::VoteRequest* request,
                                 v1::VoteResponse* response) override;
  grpc::Status QueryCommit(grpc::ServerContext* context, const v1::QueryCommitRequest* request,
                           v1::QueryCommitResponse* response) override;
  grpc::Status PutValue(grpc::ServerContext* context, const v1::PutValueRequest* request,
                        v1::PutValueResponse* response) override;
  grpc::ServerUnaryReactor* GetValue(grpc::CallbackServerContext* context, const v1::GetValueRequest* request,
                                     v1::GetValueResponse* response) override;

 private:
  absl::Status CheckHello(const grpc::ServerContext& context, const v1::JoinRequest& request) const;
  // The first request of a stream. CANCELLED it has ended; RESOURCE_EXHAUSTED the caller has too many that say nothing.
  absl::Status Hear(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream,
                    v1::JoinRequest& request);
  // Joins the node that has said `request`, and hears it until its stream ends.
  absl::Status Serve(grpc::ServerContext* context, v1::JoinRequest& request,
                     grpc::ServerReaderWriter<v1::JoinResponse, v1::JoinRequest>* stream);
  void LogNode(LogLevel level, absl::string_view event, const NodeStreamRegistry::Stream& stream);
  grpc::ServerUnaryReactor* GetParts(const v1::GetValueRequest* request, v1::GetValueResponse* response);
  // Node 0 speaks in its own process.
  absl::Status CheckNode(const grpc::ServerContextBase& context, absl::string_view operation, absl::string_view model,
                         int node) const;

  Coordinator* const coordinator_;
  NodeStreamRegistry streams_;
  const SpeakerCheck check_speaker_;
  UnidentifiedStreams unidentified_;
  ThrottledLog log_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_CLUSTER_SERVICE_H_
