// Calls of any method of the daemon's services, with any bytes as their messages.
#ifndef PARAMSHARD_TESTS_FUZZ_ANY_CALL_H_
#define PARAMSHARD_TESTS_FUZZ_ANY_CALL_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paramshard {

// Every method that a daemon serves to its users, in the order of the protos.
std::vector<const google::protobuf::MethodDescriptor*> ServedMethods();

// Sends the messages, half-closes, and reads to the end, or until a third of a second has passed: every method is a
// stream on the wire. nullopt sends no token.
grpc::Status CallAny(const std::shared_ptr<grpc::Channel>& channel, const google::protobuf::MethodDescriptor& method,
                     const std::optional<std::string>& token, const std::vector<std::string>& messages);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_ANY_CALL_H_
