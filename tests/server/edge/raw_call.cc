#include "tests/server/edge/raw_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <vector>

#include "kernels/base/check.h"
#include "tests/server/edge/daemon_client.h"

namespace paramshard::server {

absl::StatusOr<std::string> CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                                    const std::string& request, grpc::ClientContext* context) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const auto reader = stub.PrepareUnaryCall(context, method, grpc::ByteBuffer(&slice, 1), &queue);
  reader->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  reader->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  PARAMSHARD_CHECK(queue.Next(&tag, &ok));
  if (!status.ok()) return FromGrpc(status);
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (response.Dump(&slices).ok()) {
    for (const grpc::Slice& each : slices) bytes.append(reinterpret_cast<const char*>(each.begin()), each.size());
  }
  return bytes;
}

}  // namespace paramshard::server
