#include "client/ctl/admin_client.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/internal/grpc_status.h"
#include "client/internal/sockets.h"
#include "kernels/base/status_macros.h"
#include "proto/wire/handoff.h"

namespace paramshard::ctl {

absl::StatusOr<AdminClient> AdminClient::Connect(const Options& options) {
  ASSIGN_OR_RETURN(const auto paths, paramshard::internal::FindSockets(options.socket_dir));
  ASSIGN_OR_RETURN(auto companion, paramshard::internal::Companion::Connect(paths.handoff, options.timeout));
  ASSIGN_OR_RETURN(auto channel, paramshard::internal::OpenChannel(paths, options.timeout));
  return AdminClient(options, std::move(companion), v1::AdminService::NewStub(channel));
}

AdminClient::AdminClient(Options options, paramshard::internal::Companion companion, std::unique_ptr<Stub> stub)
    : options_(std::move(options)), companion_(std::move(companion)), stub_(std::move(stub)) {}

std::unique_ptr<grpc::ClientContext> AdminClient::NewContext(absl::Duration timeout) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata(wire::kTokenMetadata, companion_.token());
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return context;
}

absl::Status AdminClient::Converted(const grpc::Status& status) { return paramshard::internal::FromGrpc(status); }

absl::StatusOr<v1::ListShardsResponse> AdminClient::ListAllShards(const std::string& model, int page_size) {
  v1::ListShardsRequest request;
  request.set_model(model);
  request.set_page_size(page_size);
  v1::ListShardsResponse all;
  do {
    v1::ListShardsResponse page;
    RETURN_IF_ERROR(Call(&Stub::ListShards, request, page));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      return absl::InternalError("another page token expected from the daemon, got the same again");
    }
    request.set_page_token(page.next_page_token());
    all.clear_broken_devices();  // every page names them all
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::GetParameterStatsResponse> AdminClient::Stats(const std::string& model, int limit) {
  const std::unique_ptr<grpc::ClientContext> context = NewContext(options_.stream_timeout);
  v1::GetParameterStatsRequest request;
  request.set_model(model);
  request.set_limit(limit);
  v1::GetParameterStatsResponse response;
  RETURN_IF_ERROR(Converted(stub_->GetParameterStats(context.get(), request, &response)));
  return response;
}

absl::StatusOr<v1::VerifySummary> AdminClient::Verify(const std::string& model,
                                                      const std::function<void(const v1::ExtentVerification&)>& sink) {
  const std::unique_ptr<grpc::ClientContext> context = NewContext(options_.stream_timeout);
  v1::VerifyModelRequest request;
  request.set_model(model);
  const auto reader = stub_->VerifyModel(context.get(), request);
  v1::VerifyModelResponse response;
  std::optional<v1::VerifySummary> summary;
  while (reader->Read(&response)) {
    if (response.has_extent()) sink(response.extent());
    if (response.has_summary()) summary = response.summary();
  }
  RETURN_IF_ERROR(Converted(reader->Finish()));
  if (!summary.has_value()) return absl::InternalError("a summary expected at the end of the stream, got none");
  return *summary;
}

absl::StatusOr<v1::ImportFileResponse> AdminClient::ImportFile(const v1::ImportFileRequest& request) {
  const std::unique_ptr<grpc::ClientContext> context = NewContext(options_.stream_timeout);
  v1::ImportFileResponse response;
  RETURN_IF_ERROR(Converted(stub_->ImportFile(context.get(), request, &response)));
  return response;
}

}  // namespace paramshard::ctl
