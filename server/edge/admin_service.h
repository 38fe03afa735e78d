// gRPC service for operators.
#ifndef PARAMSHARD_SERVER_EDGE_ADMIN_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_ADMIN_SERVICE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "paramshard/v1/admin.pb.h"
#include "server/base/server_command.h"
#include "server/checkpoints/restores.h"
#include "server/edge/guarded_service.h"
#include "server/edge/metrics_page.h"
#include "server/edge/mirror_service.h"
#include "server/mirrors/image_store.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// Thread-safe; `store`, `restores`, `metrics`, `mirrors`, `callers` and `workers` outlive the server that the service is
// registered with.
class AdminService final : public GuardedService {
 public:
  // Calls that end the daemon. Both begin its end and return at once.
  struct Lifetime {
    std::function<void()> drain;
    // Ends this server; another one follows. Null without a keeper.
    // `lose_models`: the next server has none of this server's models.
    std::function<absl::Status(const ServerCommandChange& change, bool lose_models)> restart = nullptr;
    // Why this server was started instead of the server that the last restart asked for; empty if it was not.
    std::string rollback = {};
    // GetVersionResponse.insecure_addresses.
    std::vector<std::string> insecure_addresses = {};
  };
  // Where mirrors are known: of a mirror itself, and of the training that mirrors ask.
  struct Mirrors {
    Mirror* own = nullptr;  // null: this daemon is none
    const MirrorService* asking = nullptr;
    const ImageStore* images = nullptr;
  };
  AdminService(const ModelStore* store, Restores* restores, MetricsPage* metrics, Mirrors mirrors, Callers* callers,
               CallWorkers* workers, Lifetime lifetime);

 private:
  absl::StatusOr<v1::ListModelsResponse> ListModels(const Call& call, const v1::ListModelsRequest& request);
  absl::StatusOr<v1::ListShardsResponse> ListShards(const Call& call, const v1::ListShardsRequest& request);
  absl::StatusOr<v1::DescribeParameterResponse> DescribeParameter(const Call& call,
                                                                  const v1::DescribeParameterRequest& request);
  absl::StatusOr<v1::GetParameterStatsResponse> GetParameterStats(const Call& call,
                                                                  const v1::GetParameterStatsRequest& request);
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(const Call& call, const v1::ListSessionsRequest& request);
  absl::StatusOr<v1::ListReadersResponse> ListReaders(const Call& call, const v1::ListReadersRequest& request);
  absl::StatusOr<v1::ListMirrorsResponse> ListMirrors(const Call& call, const v1::ListMirrorsRequest& request);
  absl::StatusOr<v1::ActivateMirrorResponse> ActivateMirror(const Call& call, const v1::ActivateMirrorRequest& request);
  absl::StatusOr<v1::GetMemoryResponse> GetMemory(const Call& call, const v1::GetMemoryRequest& request);
  // Adds the models of a mirror, and those that it still waits for.
  void AddMirrored(v1::ListModelsResponse& response) const;
  // Adds the images of a training, or the copies of a mirror.
  void AddMirrored(v1::GetMemoryResponse& response) const;
  absl::StatusOr<v1::GetMetricsResponse> GetMetrics(const Call& call, const v1::GetMetricsRequest& request);
  absl::Status VerifyModel(const Call& call, const v1::VerifyModelRequest& request,
                           MessageWriter<v1::VerifyModelResponse>* writer);
  absl::StatusOr<v1::ImportFileResponse> ImportFile(const Call& call, const v1::ImportFileRequest& request);
  absl::StatusOr<v1::SaveModelResponse> SaveModel(const Call& call, const v1::SaveModelRequest& request);
  absl::StatusOr<v1::ListSavesResponse> ListSaves(const Call& call, const v1::ListSavesRequest& request);
  absl::Status RestoreModel(const Call& call, const v1::RestoreModelRequest& request,
                            MessageWriter<v1::RestoreModelResponse>* writer);
  absl::StatusOr<v1::HealModelResponse> HealModel(const Call& call, const v1::HealModelRequest& request);
  absl::StatusOr<v1::DrainResponse> Drain(const Call& call, const v1::DrainRequest& request);
  absl::StatusOr<v1::RestartResponse> Restart(const Call& call, const v1::RestartRequest& request);
  absl::StatusOr<v1::SetLogLevelResponse> SetLogLevel(const Call& call, const v1::SetLogLevelRequest& request);
  absl::StatusOr<v1::GetTraceResponse> GetTrace(const Call& call, const v1::GetTraceRequest& request);
  absl::StatusOr<v1::GetVersionResponse> GetVersion(const Call& call, const v1::GetVersionRequest& request);

  const ModelStore* const store_;
  Restores* const restores_;
  MetricsPage* const metrics_;
  const Mirrors mirrors_;
  const Lifetime lifetime_;
  const absl::Time started_at_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_ADMIN_SERVICE_H_
