// Messages as gRPC carries them: bytes, which are not parsed before the caller is known.
#ifndef PARAMSHARD_SERVER_EDGE_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_MESSAGES_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

// Parses a message. INVALID_ARGUMENT, naming `operation`, for bytes that do not parse.
absl::Status ParseMessage(absl::string_view operation, grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_MESSAGES_H_
