#include "tests/fuzz/any_call.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/companion_packet.h"
#include "paramshard/v1/admin.pb.h"
#include "paramshard/v1/reader.pb.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

using google::protobuf::MethodDescriptor;

std::vector<const MethodDescriptor*> ServedMethods() {
  std::vector<const MethodDescriptor*> methods;
  for (const auto* const file : {v1::GetModelRequest::descriptor()->file(), v1::GetVersionRequest::descriptor()->file(),
                                 v1::OpenReaderRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const auto* const service = file->service(i);
      for (int method = 0; method < service->method_count(); ++method) methods.push_back(service->method(method));
    }
  }
  return methods;
}

grpc::Status CallAny(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
                     const std::optional<std::string>& token, const std::vector<std::string>& messages) {
  grpc::ClientContext context;
  if (token.has_value()) context.AddMetadata(wire::kTokenMetadata, *token);
  // Each step of the call ends with it.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(333));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::GenericStub stub(channel);
  const auto stream =
      stub.PrepareCall(&context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
  stream->StartCall(nullptr);
  bool going = next();
  for (size_t i = 0; going && i < messages.size(); ++i) {
    const grpc::Slice slice(messages[i]);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    going = next();
  }
  if (going) {
    stream->WritesDone(nullptr);
    next();
  }
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  return status;
}

}  // namespace paramshard
