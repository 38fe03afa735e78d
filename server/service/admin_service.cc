#include "server/service/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/service/file_import.h"
#include "server/service/grpc_status.h"
#include "server/service/inspection_messages.h"
#include "server/service/stall_guard.h"
#include "server/store/inspection.h"
#include "server/version.h"

namespace paramshard::server {
namespace {

constexpr int32_t kDefaultPageSize = 1000;
constexpr int32_t kMaxPageSize = 10000;
constexpr int32_t kDefaultStatsLimit = 100;
constexpr int32_t kMaxStatsLimit = 10000;

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t nanoseconds = absl::ToUnixNanos(time);
  proto.set_seconds(nanoseconds / 1'000'000'000);
  proto.set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
  return proto;
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A page token is the number of shards before the page.
absl::Status ListShardsPage(const ModelStore& store, const v1::ListShardsRequest& request,
                            v1::ListShardsResponse& response) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  int64_t skip = 0;
  if (!request.page_token().empty() && (!absl::SimpleAtoi(request.page_token(), &skip) || skip < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("list shards: a page token of this RPC expected, got ", request.page_token().substr(0, 64)));
  }
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("list shards: page_size >= 0 expected, got ", request.page_size()));
  }
  const int64_t limit = request.page_size() == 0 ? kDefaultPageSize : std::min(request.page_size(), kMaxPageSize);
  for (const BrokenDevice& broken : ListBrokenDevices(store.world())) {
    *response.add_broken_devices() = ToProto(broken);
  }
  std::vector<ShardListing> shards = ListShards(*model, skip, limit + 1);
  if (static_cast<int64_t>(shards.size()) > limit) {
    shards.pop_back();
    response.set_next_page_token(absl::StrCat(skip + limit));
  }
  for (const ShardListing& shard : shards) *response.add_shards() = ToProto(shard);
  return absl::OkStatus();
}

absl::StatusOr<v1::GetParameterStatsResponse> GetStats(const ModelStore& store, const grpc::ServerContext& context,
                                                       const v1::GetParameterStatsRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  if (request.limit() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("parameter stats: limit >= 0 expected, got ", request.limit()));
  }
  const int32_t limit = request.limit() == 0 ? kDefaultStatsLimit : std::min(request.limit(), kMaxStatsLimit);
  ASSIGN_OR_RETURN(const RankedStats stats, ListParameterStats(*model, limit, [&] { return context.IsCancelled(); }));
  return ToProto(stats);
}

v1::SessionSummary Summarize(const Model& model, const Model::Seat& seat) {
  v1::SessionSummary summary;
  const World& world = model.world();
  summary.set_session(seat.trainer.session);
  summary.set_model(model.spec().name);
  summary.set_rank(seat.trainer.rank);
  summary.set_device(world.devices[seat.trainer.rank - world.first_rank]->Name());
  summary.set_pid(seat.trainer.pid);
  summary.set_uid(seat.trainer.uid);
  summary.set_epoch(seat.epoch);
  summary.set_last_command(seat.last_command);
  summary.set_waits_for(seat.waits_for);
  *summary.mutable_attached_at() = ToProto(seat.trainer.attached_at);
  return summary;
}

absl::Status Verify(const ModelStore& store, const grpc::ServerContext& context, const std::string& name,
                    grpc::ServerWriter<v1::VerifyModelResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(name));
  StallGuard guard(context, kStallTimeout);
  const auto send = [&](const v1::VerifyModelResponse& response) {
    guard.Restart();
    return writer->Write(response) ? absl::OkStatus() : absl::AbortedError("verify: the caller has gone");
  };
  v1::VerifyModelResponse response;
  ASSIGN_OR_RETURN(const VerifySummary summary, VerifyModel(*model, [&](const ExtentVerification& extent) {
                     v1::VerifyModelResponse one;
                     *one.mutable_extent() = ToProto(extent);
                     return send(one);
                   }));
  *response.mutable_summary() = ToProto(summary);
  return send(response);
}

}  // namespace

grpc::Status AdminService::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                      v1::ListModelsResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  for (const auto& model : store_->List()) *response->add_models() = ToProto(server::Summarize(*model));
  return grpc::Status::OK;
}

grpc::Status AdminService::ListShards(grpc::ServerContext* context, const v1::ListShardsRequest* request,
                                      v1::ListShardsResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(ListShardsPage(*store_, *request, *response));
}

grpc::Status AdminService::DescribeParameter(grpc::ServerContext* context, const v1::DescribeParameterRequest* request,
                                             v1::DescribeParameterResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  const auto model = store_->Find(request->model());
  if (!model.ok()) return ToGrpc(model.status());
  const auto described = server::DescribeParameter(**model, request->parameter());
  if (!described.ok()) return ToGrpc(described.status());
  *response = ToProto(*described);
  return grpc::Status::OK;
}

grpc::Status AdminService::GetParameterStats(grpc::ServerContext* context, const v1::GetParameterStatsRequest* request,
                                             v1::GetParameterStatsResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  auto stats = GetStats(*store_, *context, *request);
  if (!stats.ok()) return ToGrpc(stats.status());
  *response = *std::move(stats);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListSessions(grpc::ServerContext* context, const v1::ListSessionsRequest*,
                                        v1::ListSessionsResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  std::vector<v1::SessionSummary> sessions;
  for (const auto& model : store_->List()) {
    for (const Model::Seat& seat : model->status().seats) sessions.push_back(Summarize(*model, seat));
  }
  std::sort(sessions.begin(), sessions.end(), [](const auto& a, const auto& b) { return a.session() < b.session(); });
  response->mutable_sessions()->Assign(sessions.begin(), sessions.end());
  return grpc::Status::OK;
}

grpc::Status AdminService::GetMemory(grpc::ServerContext* context, const v1::GetMemoryRequest*,
                                     v1::GetMemoryResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  for (const auto& model : store_->List()) {
    for (const MemoryUse& use : CountMemory(*model)) {
      response->set_total_bytes(response->total_bytes() + use.size_bytes);
      *response->add_uses() = ToProto(model->spec().name, use);
    }
  }
  response->set_resident_bytes(ResidentBytes());
  for (const BrokenDevice& broken : ListBrokenDevices(store_->world())) {
    *response->add_broken_devices() = ToProto(broken);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::VerifyModel(grpc::ServerContext* context, const v1::VerifyModelRequest* request,
                                       grpc::ServerWriter<v1::VerifyModelResponse>* writer) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  return ToGrpc(Verify(*store_, *context, request->model(), writer));
}

grpc::Status AdminService::ImportFile(grpc::ServerContext* context, const v1::ImportFileRequest* request,
                                      v1::ImportFileResponse* response) {
  const auto caller = callers_->Authenticate(*context);
  if (!caller.ok()) return ToGrpc(caller.status());
  if (absl::Status status = CheckMayImportFile(caller->peer.uid); !status.ok()) return ToGrpc(status);
  auto imported = server::ImportFile(*store_, *request, *context);
  if (!imported.ok()) return ToGrpc(imported.status());
  *response = *std::move(imported);
  return grpc::Status::OK;
}

grpc::Status AdminService::Drain(grpc::ServerContext* context, const v1::DrainRequest*, v1::DrainResponse*) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  drain_();
  return grpc::Status::OK;
}

grpc::Status AdminService::GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                                      v1::GetVersionResponse* response) {
  if (const auto caller = callers_->Authenticate(*context); !caller.ok()) return ToGrpc(caller.status());
  const World& world = store_->world();
  response->set_version(kVersion);
#ifdef NDEBUG
  response->set_build_type("release");
#else
  response->set_build_type("debug");
#endif
  for (const ComputeDevice* device : world.devices) response->add_devices(device->Name());
  response->set_node(world.cluster->node());
  response->set_nodes(world.cluster->nodes());
  *response->mutable_started_at() = ToProto(started_at_);
  response->set_pid(getpid());
  for (const BrokenDevice& broken : ListBrokenDevices(world)) *response->add_broken_devices() = ToProto(broken);
  return grpc::Status::OK;
}

}  // namespace paramshard::server
