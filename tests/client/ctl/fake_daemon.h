// A daemon that answers what the test says: the companion socket and AdminService, nothing behind them.
#ifndef PARAMSHARD_TESTS_CLIENT_CTL_FAKE_DAEMON_H_
#define PARAMSHARD_TESTS_CLIENT_CTL_FAKE_DAEMON_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/shared_memory/file_descriptor.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::ctl {

// Answers of the fake. An error is returned by every RPC.
struct FakeAnswers {
  grpc::Status error;
  v1::ListModelsResponse models;
  std::vector<v1::ListShardsResponse> pages;  // page i has the token "page-<i>"
  v1::DescribeParameterResponse parameter;
  v1::GetParameterStatsResponse stats;
  v1::ListSessionsResponse sessions;
  v1::ListReadersResponse readers;
  v1::ListMirrorsResponse mirrors;
  v1::ActivateMirrorResponse activation;
  v1::GetMemoryResponse memory;
  v1::GetMetricsResponse metrics;
  std::vector<v1::VerifyModelResponse> verification;
  v1::ImportFileResponse import_file;
  v1::SaveModelResponse save;
  v1::ListSavesResponse saves;
  std::vector<v1::RestoreModelResponse> restore;
  v1::HealModelResponse heal;
  v1::SetLogLevelResponse log_level;
  v1::GetTraceResponse trace;
  v1::GetVersionResponse version;
};

// Last requests to the fake.
struct FakeRequests {
  v1::DescribeParameterRequest describe;
  v1::GetParameterStatsRequest stats;
  std::vector<v1::ListShardsRequest> shards;
  v1::ActivateMirrorRequest activate;
  v1::VerifyModelRequest verify;
  v1::ImportFileRequest import_file;
  v1::SaveModelRequest save;
  v1::ListSavesRequest saves;
  v1::RestoreModelRequest restore;
  v1::HealModelRequest heal;
  int drains = 0;
  v1::DeleteModelRequest delete_model;
  v1::RestartRequest restart;
  v1::SetLogLevelRequest log_level;
  v1::GetTraceRequest trace;
};

class FakeAdminService final : public v1::AdminService::Service {
 public:
  explicit FakeAdminService(std::string token) : token_(std::move(token)) {}

  const std::string& token() const { return token_; }

  FakeAnswers answers;
  FakeRequests requests;

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override;
  grpc::Status ListShards(grpc::ServerContext*, const v1::ListShardsRequest*, v1::ListShardsResponse*) override;
  grpc::Status DescribeParameter(grpc::ServerContext*, const v1::DescribeParameterRequest*,
                                 v1::DescribeParameterResponse*) override;
  grpc::Status GetParameterStats(grpc::ServerContext*, const v1::GetParameterStatsRequest*,
                                 v1::GetParameterStatsResponse*) override;
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest*, v1::ListSessionsResponse*) override;
  grpc::Status ListReaders(grpc::ServerContext*, const v1::ListReadersRequest*, v1::ListReadersResponse*) override;
  grpc::Status ListMirrors(grpc::ServerContext*, const v1::ListMirrorsRequest*, v1::ListMirrorsResponse*) override;
  grpc::Status ActivateMirror(grpc::ServerContext*, const v1::ActivateMirrorRequest*,
                              v1::ActivateMirrorResponse*) override;
  grpc::Status GetMemory(grpc::ServerContext*, const v1::GetMemoryRequest*, v1::GetMemoryResponse*) override;
  grpc::Status GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest*, v1::GetMetricsResponse*) override;
  grpc::Status VerifyModel(grpc::ServerContext*, const v1::VerifyModelRequest*,
                           grpc::ServerWriter<v1::VerifyModelResponse>*) override;
  grpc::Status ImportFile(grpc::ServerContext*, const v1::ImportFileRequest*, v1::ImportFileResponse*) override;
  grpc::Status SaveModel(grpc::ServerContext*, const v1::SaveModelRequest*, v1::SaveModelResponse*) override;
  grpc::Status ListSaves(grpc::ServerContext*, const v1::ListSavesRequest*, v1::ListSavesResponse*) override;
  grpc::Status RestoreModel(grpc::ServerContext*, const v1::RestoreModelRequest*,
                            grpc::ServerWriter<v1::RestoreModelResponse>*) override;
  grpc::Status HealModel(grpc::ServerContext*, const v1::HealModelRequest*, v1::HealModelResponse*) override;
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainResponse*) override;
  // From then on another process answers.
  grpc::Status Restart(grpc::ServerContext*, const v1::RestartRequest*, v1::RestartResponse*) override;
  grpc::Status SetLogLevel(grpc::ServerContext*, const v1::SetLogLevelRequest*, v1::SetLogLevelResponse*) override;
  grpc::Status GetTrace(grpc::ServerContext*, const v1::GetTraceRequest*, v1::GetTraceResponse*) override;
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*, v1::GetVersionResponse*) override;

 private:
  friend class FakeTrainerService;
  // UNAUTHENTICATED without the token, else the error of the answers.
  grpc::Status Check(const grpc::ServerContext& context) const;

  const std::string token_;
};

// Shares answers and requests with the other service.
class FakeTrainerService final : public v1::TrainerService::Service {
 public:
  explicit FakeTrainerService(FakeAdminService* admin) : admin_(*admin) {}
  grpc::Status DeleteModel(grpc::ServerContext*, const v1::DeleteModelRequest*, v1::DeleteModelResponse*) override;

 private:
  FakeAdminService& admin_;
};

// How the companion socket meets a client.
enum class FakeCompanion { kWelcomes, kRefuses, kIsSilent, kHangsUp };

// Serves in a directory of its own until destroyed.
class FakeDaemon {
 public:
  explicit FakeDaemon(FakeCompanion companion = FakeCompanion::kWelcomes);
  ~FakeDaemon();

  const std::string& directory() const { return directory_.path(); }
  FakeAdminService& service() { return service_; }
  // No gRPC from here on.
  void StopGrpc();

 private:
  void Listen();
  void ServeCompanion();
  void Meet(int socket);

  // Constant after construction.
  const FakeCompanion companion_;
  const test::TemporaryDirectory directory_;
  wire::FileDescriptor listener_;

  FakeAdminService service_;
  FakeTrainerService trainer_service_{&service_};
  std::unique_ptr<grpc::Server> server_;
  std::vector<wire::FileDescriptor> clients_;  // of the thread
  std::thread thread_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_TESTS_CLIENT_CTL_FAKE_DAEMON_H_
