// A connection to node 0.
#ifndef PARAMSHARD_SERVER_CLUSTER_NODE_ZERO_LINK_H_
#define PARAMSHARD_SERVER_CLUSTER_NODE_ZERO_LINK_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "paramshard/v1/cluster.grpc.pb.h"

namespace paramshard::server {

struct RemoteOptions;

// What calls to node 0 are made with. Whoever has a call under way holds the link: the connection closes with the last
// one.
struct NodeZeroLink {
  std::string certificate;  // its fingerprint; empty where none was read
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::ClusterService::Stub> stub;
};

// Reads the certificate that is there now, and connects with it, or a later one, when the link is used. Never connects
// over what another link has opened.
std::shared_ptr<NodeZeroLink> MakeNodeZeroLink(const RemoteOptions& options);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_NODE_ZERO_LINK_H_
