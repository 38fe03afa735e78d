#include "server/edge/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "server/base/version.h"
#include "server/edge/file_import.h"
#include "server/edge/inspection_messages.h"
#include "server/edge/restore_calls.h"
#include "server/edge/save_messages.h"
#include "server/edge/trace_messages.h"
#include "server/models/inspection.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

constexpr int32_t kDefaultPageSize = 1000;
constexpr int32_t kMaxPageSize = 10000;
constexpr int32_t kDefaultStatsLimit = 100;
constexpr int32_t kMaxStatsLimit = 10000;
// Interval in which a call that waits for a save checks whether its caller is still there.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t nanoseconds = absl::ToUnixNanos(time);
  proto.set_seconds(nanoseconds / 1'000'000'000);
  proto.set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
  return proto;
}

void AddWorld(const WorldView& view, v1::GetVersionResponse& response) {
  response.mutable_bad_links()->Assign(view.cut_links.begin(), view.cut_links.end());
  response.mutable_left_out_nodes()->Assign(view.left_out.begin(), view.left_out.end());
  for (const AbsentNode& absent : view.absent) {
    v1::AbsentNode& node = *response.add_absent_nodes();
    node.set_node(absent.node);
    *node.mutable_absent_for() = DurationToProto(absent.absent_for);
    node.set_losses(absent.losses);
  }
  for (const HeldBackNode& held_back : view.held_back) {
    v1::HeldBackNode& node = *response.add_held_back_nodes();
    node.set_node(held_back.node);
    *node.mutable_held_for() = DurationToProto(held_back.held_for);
    node.set_losses(held_back.losses);
  }
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
        absl::StrCat("list shards: want a page token of this RPC, got ", request.page_token().substr(0, 64)));
  }
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("list shards: want page_size >= 0, got ", request.page_size()));
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

absl::StatusOr<v1::GetParameterStatsResponse> GetStats(const ModelStore& store, const Call& call,
                                                       const v1::GetParameterStatsRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  if (request.limit() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("parameter stats: want limit >= 0, got ", request.limit()));
  }
  const int32_t limit = request.limit() == 0 ? kDefaultStatsLimit : std::min(request.limit(), kMaxStatsLimit);
  ASSIGN_OR_RETURN(const RankedStats stats, ListParameterStats(*model, limit, [&] { return call.IsCancelled(); }));
  return ToProto(stats);
}

v1::SessionSummary Summarize(const Model& model, const AttachedTrainer& attached) {
  v1::SessionSummary summary;
  const World& world = model.world();
  summary.set_session(attached.trainer.session);
  summary.set_model(model.spec().name);
  summary.set_rank(attached.trainer.rank);
  summary.set_device(world.devices[attached.trainer.rank - world.first_rank]->Name());
  summary.set_pid(attached.trainer.pid);
  summary.set_uid(attached.trainer.uid);
  if (attached.epoch > 0) summary.set_epoch(attached.epoch);
  summary.set_last_command(attached.last_command);
  summary.set_waits_for(attached.waits_for);
  *summary.mutable_attached_at() = ToProto(attached.trainer.attached_at);
  return summary;
}

absl::Status Verify(const ModelStore& store, const std::string& name, MessageWriter<v1::VerifyModelResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(name));
  const auto send = [&](const v1::VerifyModelResponse& response) {
    return writer->Write(response) ? absl::OkStatus() : absl::AbortedError("verify: the caller disconnected");
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

// Checks that the caller has the daemon's rights: the next server's program runs with them.
absl::Status CheckMayRestart(uid_t caller) {
  if (HasDaemonsRights(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("restart: want user ", geteuid(), " or root, got user ", caller));
}

ServerCommandChange ChangeOf(const v1::RestartRequest& request) {
  ServerCommandChange change;
  if (request.has_program()) change.program = request.program();
  if (request.has_arguments()) {
    change.arguments.emplace(request.arguments().values().begin(), request.arguments().values().end());
  }
  return change;
}

v1::LogLevel ToProto(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return v1::LOG_LEVEL_DEBUG;
    case LogLevel::kInfo:
      return v1::LOG_LEVEL_INFO;
    case LogLevel::kWarning:
      return v1::LOG_LEVEL_WARNING;
    case LogLevel::kError:
      return v1::LOG_LEVEL_ERROR;
  }
  return v1::LOG_LEVEL_UNSPECIFIED;
}

absl::StatusOr<LogLevel> LogLevelFromProto(v1::LogLevel level) {
  for (const LogLevel known : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (level == ToProto(known)) return known;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("set log level: want debug, info, warning or error, got ", static_cast<int>(level)));
}

std::string CallerText(const Callers::Caller& caller) {
  if (caller.is_remote) return caller.token;  // the URI of its certificate
  return absl::StrCat("process ", caller.peer.pid, " of user ", caller.peer.uid);
}

absl::StatusOr<ModelSaver*> SaverOf(const Model& model) {
  if (model.saver() != nullptr) return model.saver();
  return absl::FailedPreconditionError(absl::StrCat("save ", model.spec().name, ": --save-dir is not set"));
}

// The save goes on without its caller.
absl::StatusOr<SaveRecord> AwaitSave(const ModelSaver& saver, int64_t number, const Call& call) {
  while (true) {
    ASSIGN_OR_RETURN(SaveRecord record, saver.Await(number, SteadyDeadline(kLookAfter)));
    if (IsOver(record.state)) return record;
    // The file system does not answer: the save may never end.
    RETURN_IF_ERROR(record.status);
    if (call.IsCancelled()) return absl::AbortedError("save: the caller disconnected; the save goes on");
  }
}

v1::HealFate ToProto(NodeState::Fate fate) {
  switch (fate) {
    case NodeState::Fate::kUnknown:
      return v1::HEAL_FATE_UNKNOWN;
    case NodeState::Fate::kGiven:
      return v1::HEAL_FATE_GIVEN;
    case NodeState::Fate::kSame:
      return v1::HEAL_FATE_SAME;
    case NodeState::Fate::kGivenUp:
      return v1::HEAL_FATE_GIVEN_UP;
    case NodeState::Fate::kNone:
      return v1::HEAL_FATE_NONE;
  }
  return v1::HEAL_FATE_UNSPECIFIED;
}

v1::HealModelResponse ToProto(const HealingAnswer& answer) {
  v1::HealModelResponse response;
  response.set_ordered(answer.ordered);
  for (const NodeState& state : answer.nodes) {
    v1::HealNode& node = *response.add_nodes();
    node.set_node(state.node);
    node.set_fate(ToProto(state.fate));
    node.set_history_id(state.history_id);
    node.set_commit_number(state.commit_number);
    node.set_why_none(state.why_none);
  }
  return response;
}

void AddSaves(const Model& model, v1::ListSavesResponse& response) {
  if (model.saver() == nullptr) return;
  const std::string& name = model.spec().name;
  for (const SaveRecord& record : model.saver()->records()) *response.add_saves() = ToProto(name, record);
  *response.add_counts() = ToProto(name, model.saver()->counts());
}

}  // namespace

AdminService::AdminService(const ModelStore* store, Restores* restores, MetricsPage* metrics, Mirrors mirrors,
                           Callers* callers, CallWorkers* workers, Lifetime lifetime)
    : GuardedService(v1::AdminService::service_full_name(), callers, CallerTimeout(), store->world().metrics),
      store_(store),
      restores_(restores),
      metrics_(metrics),
      mirrors_(mirrors),
      lifetime_(std::move(lifetime)),
      started_at_(absl::Now()) {
  Handle("ListModels", workers->questions.get(), &AdminService::ListModels);
  Handle("ListShards", workers->questions.get(), &AdminService::ListShards);
  Handle("DescribeParameter", workers->transfers.get(), &AdminService::DescribeParameter);
  Handle("GetParameterStats", workers->transfers.get(), &AdminService::GetParameterStats);
  Handle("ListSessions", workers->questions.get(), &AdminService::ListSessions);
  Handle("ListReaders", workers->questions.get(), &AdminService::ListReaders);
  Handle("ListMirrors", workers->questions.get(), &AdminService::ListMirrors);
  Handle("ActivateMirror", workers->transfers.get(), &AdminService::ActivateMirror);
  Handle("GetMemory", workers->questions.get(), &AdminService::GetMemory);
  Handle("GetMetrics", workers->questions.get(), &AdminService::GetMetrics);
  Handle("VerifyModel", workers->transfers.get(), &AdminService::VerifyModel);
  Handle("ImportFile", workers->transfers.get(), &AdminService::ImportFile);
  Handle("SaveModel", workers->transfers.get(), &AdminService::SaveModel);
  Handle("ListSaves", workers->questions.get(), &AdminService::ListSaves);
  Handle("RestoreModel", workers->transfers.get(), &AdminService::RestoreModel);
  Handle("HealModel", workers->questions.get(), &AdminService::HealModel);
  Handle("Drain", workers->questions.get(), &AdminService::Drain);
  Handle("Restart", workers->questions.get(), &AdminService::Restart);
  Handle("SetLogLevel", workers->questions.get(), &AdminService::SetLogLevel);
  Handle("GetTrace", workers->questions.get(), &AdminService::GetTrace);
  Handle("GetVersion", workers->questions.get(), &AdminService::GetVersion);
  CheckComplete();
}

absl::StatusOr<v1::ListModelsResponse> AdminService::ListModels(const Call&, const v1::ListModelsRequest&) {
  v1::ListModelsResponse response;
  Cluster& cluster = *store_->world().cluster;
  std::map<std::string, std::string> waiting = cluster.WaitingModels();
  const auto why_no_epoch = [&](const std::string& name) {
    const auto found = waiting.extract(name);
    return found.empty() ? "" : found.mapped();
  };
  for (const auto& model : store_->List()) {
    v1::ModelSummary& summary = *response.add_models() = ToProto(server::Summarize(*model));
    const std::optional<int> donor = cluster.healing_donor(model->spec().name);
    if (donor.has_value()) summary.set_heal_from_node(*donor);
    summary.set_why_no_epoch(why_no_epoch(summary.name()));
    const bool waits = !summary.running() && summary.attached_ranks() > 0;
    if (cluster.node() != 0 && waits) summary.set_why_no_epoch("waits: node 0 says why");
  }
  for (const auto& [name, why] : store_->lost().List()) {
    v1::ModelSummary& lost = *response.add_models();
    lost.set_name(name);
    lost.set_unusable(std::string(why.message()));
    lost.set_origin(v1::VALUE_ORIGIN_LOST);
    lost.set_why_no_epoch(why_no_epoch(name));
  }
  for (const auto& [name, why] : waiting) {
    v1::AwaitedModel& awaited = *response.add_awaited_models();
    awaited.set_name(name);
    awaited.set_why_no_epoch(why);
  }
  if (mirrors_.own != nullptr) AddMirrored(response);
  return response;
}

void AdminService::AddMirrored(v1::ListModelsResponse& response) const {
  std::set<std::string> held;
  for (const PublishedPlanes& mirrored : mirrors_.own->List()) {
    v1::ModelSummary& summary = *response.add_models() = ToProto(server::Summarize(mirrored));
    held.insert(summary.name());
    summary.clear_history_id();
    summary.clear_origin();
    summary.set_why_no_epoch("a mirror holds it for readers: see paramshardctl mirror list");
    const std::optional<wire::PublishedVersion> version = mirrored.publication->last_published();
    if (!version.has_value()) continue;
    summary.set_version(version->version);
    summary.set_commit_number(version->commit_number);
    summary.set_history_id(std::string(version->history()));
  }
  for (const v1::MirrorReport& report : mirrors_.own->Reports()) {
    if (held.contains(report.model()) || (report.model().empty() && report.last_error().empty())) continue;
    v1::AwaitedModel& awaited = *response.add_awaited_models();
    awaited.set_name(report.model());
    awaited.set_why_no_epoch(report.last_error().empty() ? "the mirror receives it" : report.last_error());
  }
}

absl::StatusOr<v1::ListShardsResponse> AdminService::ListShards(const Call&, const v1::ListShardsRequest& request) {
  v1::ListShardsResponse response;
  RETURN_IF_ERROR(ListShardsPage(*store_, request, response));
  return response;
}

absl::StatusOr<v1::DescribeParameterResponse> AdminService::DescribeParameter(
    const Call&, const v1::DescribeParameterRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  ASSIGN_OR_RETURN(const ParameterDescription described, server::DescribeParameter(*model, request.parameter()));
  v1::DescribeParameterResponse response = ToProto(described);
  response.set_origin(static_cast<v1::ValueOrigin>(model->state().origin()));
  return response;
}

absl::StatusOr<v1::GetParameterStatsResponse> AdminService::GetParameterStats(
    const Call& call, const v1::GetParameterStatsRequest& request) {
  return GetStats(*store_, call, request);
}

absl::StatusOr<v1::ListSessionsResponse> AdminService::ListSessions(const Call&, const v1::ListSessionsRequest&) {
  std::vector<v1::SessionSummary> sessions;
  for (const auto& model : store_->List()) {
    for (const AttachedTrainer& attached : model->trainers().activity().trainers)
      sessions.push_back(Summarize(*model, attached));
  }
  std::sort(sessions.begin(), sessions.end(), [](const auto& a, const auto& b) { return a.session() < b.session(); });
  v1::ListSessionsResponse response;
  response.mutable_sessions()->Assign(sessions.begin(), sessions.end());
  return response;
}

absl::StatusOr<v1::ListReadersResponse> AdminService::ListReaders(const Call&, const v1::ListReadersRequest&) {
  v1::ListReadersResponse response;
  for (const auto& model : store_->List()) {
    for (const ReaderReport& reader : model->publication().readers()) {
      *response.add_readers() = ToProto(model->spec().name, reader);
    }
  }
  for (const LeftReader& left : store_->left_readers().List()) {
    v1::ReaderSummary& summary = *response.add_readers();
    summary = ToProto(left.model, left.report);
    summary.set_model_deleted(!left.is_of_earlier_server);
    summary.set_of_earlier_server(left.is_of_earlier_server);
  }
  if (mirrors_.own == nullptr) return response;
  for (const PublishedPlanes& mirrored : mirrors_.own->List()) {
    for (const ReaderReport& reader : mirrored.publication->readers()) {
      *response.add_readers() = ToProto(mirrored.layout->spec().name, reader);
    }
  }
  return response;
}

absl::StatusOr<v1::ListMirrorsResponse> AdminService::ListMirrors(const Call&, const v1::ListMirrorsRequest&) {
  v1::ListMirrorsResponse response;
  const std::vector<v1::MirrorReport> reports =
      mirrors_.own != nullptr ? mirrors_.own->Reports() : mirrors_.asking->Reports();
  response.mutable_mirrors()->Assign(reports.begin(), reports.end());
  return response;
}

absl::StatusOr<v1::ActivateMirrorResponse> AdminService::ActivateMirror(const Call&,
                                                                        const v1::ActivateMirrorRequest& request) {
  if (mirrors_.own == nullptr) {
    return absl::FailedPreconditionError("activate: this daemon is no mirror; name the address of one");
  }
  RETURN_IF_ERROR(mirrors_.own->Activate(request.model(), request.commit_number()));
  v1::ActivateMirrorResponse response;
  for (v1::MirrorReport& report : mirrors_.own->Reports()) {
    if (report.model() == request.model()) *response.mutable_mirror() = std::move(report);
  }
  return response;
}

absl::StatusOr<v1::GetMemoryResponse> AdminService::GetMemory(const Call&, const v1::GetMemoryRequest&) {
  v1::GetMemoryResponse response;
  for (const auto& model : store_->List()) {
    for (const MemoryUse& use : CountMemory(*model)) {
      response.set_total_bytes(response.total_bytes() + use.size_bytes);
      *response.add_uses() = ToProto(model->spec().name, use);
    }
  }
  AddMirrored(response);
  response.set_resident_bytes(ResidentBytes());
  for (const BrokenDevice& broken : ListBrokenDevices(store_->world())) {
    *response.add_broken_devices() = ToProto(broken);
  }
  return response;
}

void AdminService::AddMirrored(v1::GetMemoryResponse& response) const {
  const auto add = [&](const std::string& model, absl::string_view memory_class, int64_t bytes) {
    response.set_total_bytes(response.total_bytes() + bytes);
    *response.add_uses() = ToProto(model, {.memory_class = std::string(memory_class), .size_bytes = bytes});
  };
  for (const auto& [model, bytes] : mirrors_.images->BytesByModel()) add(model, "mirror_images", bytes);
  if (mirrors_.own == nullptr) return;
  for (const PublishedPlanes& mirrored : mirrors_.own->List()) {
    int64_t bytes = 0;
    for (const PublishedPlanes::Rank& rank : mirrored.ranks) bytes += rank.planes->size_bytes() / mirrored.copies;
    add(mirrored.layout->spec().name, "planes", bytes);
    add(mirrored.layout->spec().name, "staging", bytes);
  }
}

absl::StatusOr<v1::GetMetricsResponse> AdminService::GetMetrics(const Call&, const v1::GetMetricsRequest&) {
  v1::GetMetricsResponse response;
  response.set_text(metrics_->Text());
  return response;
}

absl::Status AdminService::VerifyModel(const Call&, const v1::VerifyModelRequest& request,
                                       MessageWriter<v1::VerifyModelResponse>* writer) {
  return Verify(*store_, request.model(), writer);
}

absl::StatusOr<v1::ImportFileResponse> AdminService::ImportFile(const Call& call,
                                                                const v1::ImportFileRequest& request) {
  RETURN_IF_ERROR(CheckMayImportFile(call.caller().peer.uid));
  return server::ImportFile(*store_, request, call);
}

absl::StatusOr<v1::SaveModelResponse> AdminService::SaveModel(const Call& call, const v1::SaveModelRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  ASSIGN_OR_RETURN(ModelSaver* const saver, SaverOf(*model));
  ASSIGN_OR_RETURN(SaveRecord record, saver->Request());
  if (request.wait()) {
    ASSIGN_OR_RETURN(record, AwaitSave(*saver, record.number, call));
  }
  v1::SaveModelResponse response;
  *response.mutable_save() = ToProto(model->spec().name, record);
  return response;
}

absl::StatusOr<v1::ListSavesResponse> AdminService::ListSaves(const Call&, const v1::ListSavesRequest& request) {
  v1::ListSavesResponse response;
  if (!request.model().empty()) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
    AddSaves(*model, response);
    return response;
  }
  for (const auto& model : store_->List()) AddSaves(*model, response);
  return response;
}

absl::Status AdminService::RestoreModel(const Call& call, const v1::RestoreModelRequest& request,
                                        MessageWriter<v1::RestoreModelResponse>* writer) {
  return server::RestoreModel(*store_, *restores_, request, call, writer);
}

absl::StatusOr<v1::HealModelResponse> AdminService::HealModel(const Call& call, const v1::HealModelRequest& request) {
  if (!request.has_from_node()) {
    return absl::InvalidArgumentError(
        absl::StrCat("heal ", request.model(), ": from_node is required: the node whose state is right"));
  }
  ASSIGN_OR_RETURN(const HealingAnswer answer,
                   store_->world().cluster->OrderHealing(request.model(), request.from_node()));
  if (answer.ordered) {
    const NodeState& right = answer.nodes[request.from_node()];
    Log(LogLevel::kWarning, "heal requested",
        {{"model", request.model()},
         {"from", absl::StrCat(right.node)},
         {"history", right.history_id},
         {"commit", absl::StrCat(right.commit_number)},
         {"caller", CallerText(call.caller())}});
  }
  return ToProto(answer);
}

absl::StatusOr<v1::DrainResponse> AdminService::Drain(const Call&, const v1::DrainRequest&) {
  lifetime_.drain();
  return v1::DrainResponse();
}

absl::StatusOr<v1::RestartResponse> AdminService::Restart(const Call& call, const v1::RestartRequest& request) {
  RETURN_IF_ERROR(CheckMayRestart(call.caller().peer.uid));
  if (lifetime_.restart == nullptr) {
    return absl::FailedPreconditionError("restart: the daemon has no keeper; start it with --keeper=on");
  }
  RETURN_IF_ERROR(lifetime_.restart(ChangeOf(request), request.lose_models()));
  return v1::RestartResponse();
}

absl::StatusOr<v1::SetLogLevelResponse> AdminService::SetLogLevel(const Call& call,
                                                                  const v1::SetLogLevelRequest& request) {
  ASSIGN_OR_RETURN(const LogLevel level, LogLevelFromProto(request.level()));
  v1::SetLogLevelResponse response;
  response.set_previous(ToProto(ChangeLogLevel(level, CallerText(call.caller()))));
  return response;
}

absl::StatusOr<v1::GetTraceResponse> AdminService::GetTrace(const Call&, const v1::GetTraceRequest& request) {
  return server::GetTrace(*store_, request);
}

absl::StatusOr<v1::GetVersionResponse> AdminService::GetVersion(const Call&, const v1::GetVersionRequest&) {
  v1::GetVersionResponse response;
  const World& world = store_->world();
  response.set_version(kVersion);
  response.set_build_type(kBuildType);
  for (const ComputeDevice* device : world.devices) response.add_devices(device->Name());
  response.set_node(world.cluster->node());
  response.set_nodes(world.cluster->nodes());
  response.set_first_rank(world.first_rank);
  response.set_world_size(world.world_size);
  *response.mutable_started_at() = ToProto(started_at_);
  response.set_pid(getpid());
  response.set_rollback(lifetime_.rollback);
  response.set_log_level(ToProto(LeastLogLevel()));
  for (const std::string& address : lifetime_.insecure_addresses) response.add_insecure_addresses(address);
  if (const std::optional<WorldView> view = world.cluster->ViewWorld()) AddWorld(*view, response);
  if (const absl::Status reached = world.cluster->CheckCoordinator(); !reached.ok()) {
    response.set_node_zero_lost(std::string(reached.message()));
  }
  for (const BrokenDevice& broken : ListBrokenDevices(world)) *response.add_broken_devices() = ToProto(broken);
  return response;
}

}  // namespace paramshard::server
