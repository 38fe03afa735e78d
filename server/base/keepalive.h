// gRPC keepalive, which detects peers that are gone.
#ifndef PARAMSHARD_SERVER_BASE_KEEPALIVE_H_
#define PARAMSHARD_SERVER_BASE_KEEPALIVE_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace paramshard::server {

// Makes this end break a connection about 15 seconds after its peer fell silent.
void SetKeepalive(grpc::ServerBuilder& builder);
void SetKeepalive(grpc::ChannelArguments& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_KEEPALIVE_H_
