#include "server/mirrors/source_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/base/grpc_deadline.h"
#include "server/world/cluster_messages.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kAnswer = absl::Seconds(5);

}  // namespace

std::shared_ptr<grpc::Channel> SourceCalls::Channel() {
  absl::MutexLock lock(&mu_);
  if (channel_ == nullptr) channel_ = options_.open(options_.address);
  return channel_;
}

template <typename Rpc>
absl::Status SourceCalls::Call(Rpc rpc) {
  const auto stub = v1::MirrorService::NewStub(Channel());
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(kAnswer));
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::CancelledError("the mirror stops");
    contexts_.insert(&context);
  }
  absl::Status status = FromGrpcStatus(rpc(*stub, &context));
  if (absl::IsDeadlineExceeded(status)) {
    status = absl::UnavailableError(absl::StrCat("no answer within ", absl::FormatDuration(kAnswer)));
  }
  absl::MutexLock lock(&mu_);
  contexts_.erase(&context);
  // A connection whose peer is gone without a word would stay open for minutes.
  if (absl::IsUnavailable(status)) channel_ = nullptr;
  if (status.ok()) return status;
  const absl::Status explained = options_.explain(status);
  return absl::Status(explained.code(), absl::StrCat("node 0 at ", options_.address, ": ", explained.message()));
}

absl::StatusOr<v1::AskVersionsResponse> SourceCalls::AskVersions(const v1::AskVersionsRequest& request) {
  v1::AskVersionsResponse response;
  RETURN_IF_ERROR(Call([&](v1::MirrorService::Stub& stub, grpc::ClientContext* context) {
    return stub.AskVersions(context, request, &response);
  }));
  return response;
}

absl::StatusOr<v1::DescribeModelResponse> SourceCalls::DescribeModel(const std::string& model) {
  v1::DescribeModelRequest request;
  request.set_model(model);
  v1::DescribeModelResponse response;
  RETURN_IF_ERROR(Call([&](v1::MirrorService::Stub& stub, grpc::ClientContext* context) {
    return stub.DescribeModel(context, request, &response);
  }));
  return response;
}

std::shared_ptr<grpc::Channel> SourceCalls::Open(const std::string& address) {
  if (address.empty()) return Channel();
  return options_.open(address);
}

void SourceCalls::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  for (grpc::ClientContext* const context : contexts_) context->TryCancel();
}

}  // namespace paramshard::server
