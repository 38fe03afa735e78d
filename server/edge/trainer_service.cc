#include "server/edge/trainer_service.h"

#include <memory>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/base/version.h"
#include "server/edge/restore_calls.h"
#include "server/edge/session_call.h"
#include "server/edge/tensor_transfer.h"
#include "server/edge/trainer_messages.h"

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

}  // namespace

TrainerService::TrainerService(ModelStore* store, Restores* restores, Callers* callers, CallWorkers* workers,
                               std::optional<CheckpointRequest> restore)
    : GuardedService(v1::TrainerService::service_full_name(), callers, CallerTimeout(), store->world().metrics),
      store_(store),
      restores_(restores),
      restore_(std::move(restore)) {
  Handle("GetCapabilities", workers->questions.get(), &TrainerService::GetCapabilities);
  Handle("CreateModel", workers->changes.get(), &TrainerService::CreateModel);
  Handle("GetModel", workers->questions.get(), &TrainerService::GetModel);
  Handle("DeleteModel", workers->deletions.get(), &TrainerService::DeleteModel);
  Handle("Session", [store, callers, workers](grpc::CallbackServerContext* context, Callers::Admission admission) {
    return StartSession(store, callers, workers, context, std::move(admission));
  });
  Handle("Import", workers->transfers.get(), &TrainerService::Import);
  Handle("Export", workers->transfers.get(), &TrainerService::Export);
  CheckComplete();
}

absl::StatusOr<v1::GetCapabilitiesResponse> TrainerService::GetCapabilities(const Call&,
                                                                            const v1::GetCapabilitiesRequest&) {
  v1::GetCapabilitiesResponse response;
  FillCapabilities(store_->world(), response);
  return response;
}

absl::StatusOr<v1::CreateModelResponse> TrainerService::CreateModel(const Call& call,
                                                                    const v1::CreateModelRequest& request) {
  return server::CreateModel(*store_, *restores_, restore_, request, call);
}

absl::StatusOr<v1::GetModelResponse> TrainerService::GetModel(const Call&, const v1::GetModelRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  v1::GetModelResponse response;
  *response.mutable_model() = ToProto(*model);
  return response;
}

absl::StatusOr<v1::DeleteModelResponse> TrainerService::DeleteModel(const Call&,
                                                                    const v1::DeleteModelRequest& request) {
  RETURN_IF_ERROR(store_->Delete(request.model(), request.request_id()));
  return v1::DeleteModelResponse();
}

absl::StatusOr<v1::ImportResponse> TrainerService::Import(const Call& call, MessageReader<v1::ImportRequest>* reader) {
  return ImportTensors(*store_, call, reader);
}

absl::Status TrainerService::Export(const Call&, const v1::ExportRequest& request,
                                    MessageWriter<v1::ExportResponse>* writer) {
  return ExportTensors(*store_, request, writer);
}

}  // namespace paramshard::server
