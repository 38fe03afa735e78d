// Notices that the other end is not there any more, and says nothing.
#ifndef PARAMSHARD_SERVER_BASE_KEEPALIVE_H_
#define PARAMSHARD_SERVER_BASE_KEEPALIVE_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace paramshard::server {

// Either end breaks the connection some 15 seconds after the other one was last heard.
void SetKeepalive(grpc::ServerBuilder& builder);
void SetKeepalive(grpc::ChannelArguments& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_KEEPALIVE_H_
