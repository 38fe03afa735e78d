// A connection to node 0.
#ifndef PARAMSHARD_SERVER_WORLD_COORDINATOR_LINK_H_
#define PARAMSHARD_SERVER_WORLD_COORDINATOR_LINK_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "paramshard/v1/cluster.grpc.pb.h"

namespace paramshard::server {

struct RemoteOptions;

// Channel and stub for calls to node 0. Each call in progress holds the link, so that the connection closes after the
// last call.
struct CoordinatorLink {
  std::string certificate;  // fingerprint; empty if none was read
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::ClusterService::Stub> stub;
};

// Reads the current certificate. The link connects when it is used, with this certificate or a later one, and never
// over another link's connection.
std::shared_ptr<CoordinatorLink> MakeCoordinatorLink(const RemoteOptions& options);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COORDINATOR_LINK_H_
