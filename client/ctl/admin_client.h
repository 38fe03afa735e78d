// paramshardctl's connection to the daemon of its node.
#ifndef PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_
#define PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/companion.h"
#include "paramshard/v1/admin.grpc.pb.h"

namespace paramshard::ctl {

// Holds the token by holding the companion connection. One call at a time. Movable. Errors of every call: the daemon's,
// as admin.proto states them; UNAVAILABLE and DEADLINE_EXCEEDED when it does not answer.
//
//   ASSIGN_OR_RETURN(AdminClient client, AdminClient::Connect({}));
//   v1::ListModelsResponse models;
//   RETURN_IF_ERROR(client.Call(&AdminClient::Stub::ListModels, v1::ListModelsRequest(), models));
class AdminClient {
 public:
  using Stub = v1::AdminService::Stub;

  struct Options {
    // Empty: the default of client.h.
    std::string socket_dir;
    // Of connecting, and of each call.
    absl::Duration timeout = absl::Seconds(30);
    // Of what reads or writes a whole model: VerifyModel, GetParameterStats, ImportFile.
    absl::Duration stream_timeout = absl::Minutes(10);
  };

  // UNAVAILABLE or DEADLINE_EXCEEDED when no daemon answers (says where it looked); PERMISSION_DENIED when it refuses
  // this user.
  static absl::StatusOr<AdminClient> Connect(const Options& options);

  // Calls an RPC with one answer.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*rpc)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                    Response& response) {
    const std::unique_ptr<grpc::ClientContext> context = NewContext(options_.timeout);
    return Converted((stub_.get()->*rpc)(context.get(), request, &response));
  }

  // The `limit` parameters whose planes are farthest from their masters.
  absl::StatusOr<v1::GetParameterStatsResponse> Stats(const std::string& model, int limit);

  // The shards of all pages as one answer without a page token.
  absl::StatusOr<v1::ListShardsResponse> ListAllShards(const std::string& model, int page_size);

  // Calls `sink` for every extent, then returns the summary.
  absl::StatusOr<v1::VerifySummary> Verify(const std::string& model,
                                           const std::function<void(const v1::ExtentVerification&)>& sink);

  absl::StatusOr<v1::ImportFileResponse> ImportFile(const v1::ImportFileRequest& request);

 private:
  AdminClient(Options options, paramshard::internal::Companion companion, std::unique_ptr<Stub> stub);

  // A call's token and deadline.
  std::unique_ptr<grpc::ClientContext> NewContext(absl::Duration timeout) const;
  static absl::Status Converted(const grpc::Status& status);

  Options options_;
  paramshard::internal::Companion companion_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_ADMIN_CLIENT_H_
