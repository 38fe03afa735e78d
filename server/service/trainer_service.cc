#include "server/service/trainer_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/service/grpc_status.h"
#include "server/service/session_handler.h"
#include "server/service/tensor_transfer.h"
#include "server/version.h"

namespace paramshard::server {
namespace {

void FillCapabilities(const World& world, v1::GetCapabilitiesResponse& response) {
  response.set_version(kVersion);
  for (const FormatTraits& traits : kFormats) response.add_formats(static_cast<v1::Format>(traits.format));
  for (const MomentType type : kMomentTypes) response.add_moment_types(static_cast<v1::MomentType>(type));
  response.set_world_size(world.world_size);
  response.set_first_rank(world.first_rank);
  for (const ComputeDevice* device : world.devices) response.add_devices(device->Name());
  response.set_node(world.cluster->node());
  response.set_nodes(world.cluster->nodes());
}

absl::Status CreateModel(ModelStore& store, const v1::CreateModelRequest& request, v1::CreateModelResponse& response) {
  ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(request.spec()));
  ASSIGN_OR_RETURN(const ModelStore::Created created, store.CreateOrJoin(std::move(spec)));
  response.set_created(created.created);
  *response.mutable_model() = created.model->ToProto();
  return absl::OkStatus();
}

}  // namespace

grpc::Status TrainerService::GetCapabilities(grpc::ServerContext* context, const v1::GetCapabilitiesRequest*,
                                             v1::GetCapabilitiesResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  FillCapabilities(store_->world(), *response);
  return grpc::Status::OK;
}

grpc::Status TrainerService::CreateModel(grpc::ServerContext* context, const v1::CreateModelRequest* request,
                                         v1::CreateModelResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(server::CreateModel(*store_, *request, *response));
}

grpc::Status TrainerService::GetModel(grpc::ServerContext* context, const v1::GetModelRequest* request,
                                      v1::GetModelResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  const auto model = store_->Find(request->model());
  if (model.ok()) *response->mutable_model() = (*model)->ToProto();
  return ToGrpc(model.status());
}

grpc::Status TrainerService::DeleteModel(grpc::ServerContext* context, const v1::DeleteModelRequest* request,
                                         v1::DeleteModelResponse*) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(store_->Delete(request->model(), request->request_id()));
}

grpc::Status TrainerService::GetLayout(grpc::ServerContext* context, const v1::GetLayoutRequest* request,
                                       v1::GetLayoutResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  const auto model = store_->Find(request->model());
  if (model.ok()) *response->mutable_layout() = (*model)->layout().ToProto();
  return ToGrpc(model.status());
}

grpc::Status TrainerService::Session(grpc::ServerContext* context,
                                     grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) {
  return ToGrpc(ServeSession(*store_, *callers_, *context, stream));
}

grpc::Status TrainerService::Import(grpc::ServerContext* context, grpc::ServerReader<v1::ImportRequest>* reader,
                                    v1::ImportResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  auto imported = ImportTensors(*store_, *context, reader);
  if (!imported.ok()) return ToGrpc(imported.status());
  *response = *std::move(imported);
  return grpc::Status::OK;
}

grpc::Status TrainerService::Export(grpc::ServerContext* context, const v1::ExportRequest* request,
                                    grpc::ServerWriter<v1::ExportResponse>* writer) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(ExportTensors(*store_, *request, writer));
}

}  // namespace paramshard::server
