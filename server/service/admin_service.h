// The gRPC service that operators call.
#ifndef PARAMSHARD_SERVER_SERVICE_ADMIN_SERVICE_H_
#define PARAMSHARD_SERVER_SERVICE_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "server/service/callers.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Thread-safe; `store` and `callers` outlive the service. `drain` begins the daemon's end and returns at once.
class AdminService final : public v1::AdminService::Service {
 public:
  AdminService(const ModelStore* store, const Callers* callers, std::function<void()> drain)
      : store_(store), callers_(callers), drain_(std::move(drain)), started_at_(absl::Now()) {}

  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;
  grpc::Status ListShards(grpc::ServerContext* context, const v1::ListShardsRequest* request,
                          v1::ListShardsResponse* response) override;
  grpc::Status DescribeParameter(grpc::ServerContext* context, const v1::DescribeParameterRequest* request,
                                 v1::DescribeParameterResponse* response) override;
  grpc::Status GetParameterStats(grpc::ServerContext* context, const v1::GetParameterStatsRequest* request,
                                 v1::GetParameterStatsResponse* response) override;
  grpc::Status ListSessions(grpc::ServerContext* context, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override;
  grpc::Status GetMemory(grpc::ServerContext* context, const v1::GetMemoryRequest* request,
                         v1::GetMemoryResponse* response) override;
  grpc::Status VerifyModel(grpc::ServerContext* context, const v1::VerifyModelRequest* request,
                           grpc::ServerWriter<v1::VerifyModelResponse>* writer) override;
  grpc::Status ImportFile(grpc::ServerContext* context, const v1::ImportFileRequest* request,
                          v1::ImportFileResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override;

 private:
  const ModelStore* store_;
  const Callers* callers_;
  const std::function<void()> drain_;
  const absl::Time started_at_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_ADMIN_SERVICE_H_
