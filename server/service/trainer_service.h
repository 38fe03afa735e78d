// The gRPC service that trainers call: checks the caller, calls the domain, converts the error.
#ifndef PARAMSHARD_SERVER_SERVICE_TRAINER_SERVICE_H_
#define PARAMSHARD_SERVER_SERVICE_TRAINER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/service/callers.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Thread-safe; `store` and `callers` outlive the service.
class TrainerService final : public v1::TrainerService::Service {
 public:
  TrainerService(ModelStore* store, Callers* callers) : store_(store), callers_(callers) {}

  grpc::Status GetCapabilities(grpc::ServerContext* context, const v1::GetCapabilitiesRequest* request,
                               v1::GetCapabilitiesResponse* response) override;
  grpc::Status CreateModel(grpc::ServerContext* context, const v1::CreateModelRequest* request,
                           v1::CreateModelResponse* response) override;
  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override;
  grpc::Status DeleteModel(grpc::ServerContext* context, const v1::DeleteModelRequest* request,
                           v1::DeleteModelResponse* response) override;
  grpc::Status GetLayout(grpc::ServerContext* context, const v1::GetLayoutRequest* request,
                         v1::GetLayoutResponse* response) override;
  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override;
  grpc::Status Import(grpc::ServerContext* context, grpc::ServerReader<v1::ImportRequest>* reader,
                      v1::ImportResponse* response) override;
  grpc::Status Export(grpc::ServerContext* context, const v1::ExportRequest* request,
                      grpc::ServerWriter<v1::ExportResponse>* writer) override;

 private:
  ModelStore* store_;
  Callers* callers_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_TRAINER_SERVICE_H_
