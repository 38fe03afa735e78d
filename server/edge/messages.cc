#include "server/edge/messages.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"

namespace paramshard::server {

absl::Status ParseMessage(absl::string_view operation, grpc::ByteBuffer& bytes,
                          google::protobuf::MessageLite& message) {
  grpc::ProtoBufferReader reader(&bytes);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(operation, ": want a message of type ", message.GetTypeName(),
                                                 ", got ", bytes.Length(), " bytes that do not parse"));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace paramshard::server
