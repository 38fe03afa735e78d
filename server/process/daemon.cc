#include "server/process/daemon.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/limits.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/descriptor_limit.h"
#include "server/base/disk_calls.h"
#include "server/checkpoints/restores.h"
#include "server/checkpoints/saver.h"
#include "server/data_plane/engines.h"
#include "server/edge/admin_service.h"
#include "server/edge/callers.h"
#include "server/edge/companion_server.h"
#include "server/edge/data_address.h"
#include "server/edge/guarded_service.h"
#include "server/edge/interrupted_changes.h"
#include "server/edge/socket_dir.h"
#include "server/edge/transport.h"
#include "server/mirrors/image_store.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"
#include "server/observe/log.h"
#include "server/observe/metric_registry.h"
#include "server/process/endpoints.h"
#include "server/process/settings.h"
#include "server/process/stop_request.h"
#include "server/process/world_member.h"

namespace paramshard::server {
namespace {

// Most models named in the summary, which has one line.
constexpr size_t kMostModelsNamed = 8;
// Longest pause between a mirror's attempts to reach the training.
constexpr int kReconnectMilliseconds = 2000;
constexpr int kLookaheadBytes = 8 << 20;  // of planes that a mirror receives

// Returns the name of a mirror for people: its machine, and its address or folder. Node 0 tells mirrors apart by it: port
// 0 is that of many.
std::string MirrorName(const DaemonConfig& config) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const bool has_address = config.listen.has_value() && !absl::EndsWith(*config.listen, ":0");
  const std::string place = has_address ? *config.listen : config.socket_dir;
  return absl::StrCat(host, " ", IsUtf8(place) ? place : absl::CHexEscape(place));
}

absl::Status RefusalOf(const DaemonConfig& config) {
  if (config.mirror.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this daemon is a mirror of ", config.mirror,
                                                    ", which holds weights for readers on this machine; ",
                                                    "use the daemons of the training for all else"));
}

SavePolicy PolicyOf(const DaemonConfig& config) {
  return {.every_commits = config.save_every_commits,
          .every_time = config.save_every_time,
          .keep = {.newest = config.save_keep, .every = config.save_keep_every},
          .on_drain = config.save_on_drain,
          .timeout = config.save_timeout};
}

}  // namespace

// Members are destroyed in reverse order: callers before what they call.
class Daemon::Impl {
 public:
  Impl(const DaemonConfig& config, KeeperServices keeper) : config_(config), keeper_(std::move(keeper)) {}
  ~Impl() { Stop(); }

  absl::Status Start(DeviceOpener open, const std::stop_token& stop);
  void Stop();
  std::string Summary() const;
  StopRequest& stop_request() { return stop_request_; }
  const ModelStore& store() const { return *store_; }
  const Endpoints& endpoints() const { return endpoints_; }

 private:
  // Opens what this machine gives: certificates, the listener of link checks, devices, the socket directory.
  absl::Status OpenMachine(DeviceOpener open);
  // Makes the store, with savers if there is a save_dir.
  void MakeStore();
  World MakeWorld();
  std::vector<ComputeDevice*> DevicePointers() const;
  // Takes over the models of the previous server. Returns its unfinished changes.
  absl::StatusOr<std::vector<InterruptedChange>> TakeOver(const std::stop_token& stop);
  absl::Status StartMirror();
  absl::Status OpenCompanion();
  absl::Status OpenEndpoints();
  AdminService::Lifetime Lifetime();
  void WatchDevices();
  void DrainModels();
  // Logs models whose commits are lost because no saves are made.
  void WarnOfWhatIsLost() const;

  const DaemonConfig config_;
  const KeeperServices keeper_;
  StopRequest stop_request_{&keeper_};  // declared before what calls it
  MetricRegistry metrics_;              // used by the members below
  EngineSettings engines_;
  Transport transport_;
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  std::unique_ptr<SocketDir> socket_dir_;
  DiskCalls disk_calls_;
  WorldMember world_member_{{.config = &config_,
                             .keeper = &keeper_,
                             .transport = &transport_,
                             .disk_calls = &disk_calls_,
                             .metrics = &metrics_}};
  Callers callers_;
  std::unique_ptr<CompanionServer> companion_;
  CallWorkers workers_;
  std::unique_ptr<Savers> savers_;  // null without a save_dir
  // A model's destructor waits for the end of its epoch, which may still answer trainers through the members above.
  std::unique_ptr<ModelStore> store_;
  std::unique_ptr<Restores> restores_;
  std::unique_ptr<InterruptedChanges> changes_;
  std::unique_ptr<ImageStore> images_;
  std::unique_ptr<Mirror> mirror_;  // null: this daemon is none
  Endpoints endpoints_;
  std::atomic<bool> stopped_ = false;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

absl::Status Daemon::Impl::Start(DeviceOpener open, const std::stop_token& stop) {
  on_stop_.emplace(stop, [this] { stop_request_.Make(); });
  RETURN_IF_ERROR(Check(config_));
  RETURN_IF_ERROR(OpenMachine(open));
  RETURN_IF_ERROR(world_member_.Join(static_cast<int>(devices_.size()), stop));
  MakeStore();
  ASSIGN_OR_RETURN(std::vector<InterruptedChange> cut_off, TakeOver(stop));
  restores_ = std::make_unique<Restores>(Restores::Options{.store = store_.get(), .timeout = config_.restore_timeout});
  RETURN_IF_ERROR(OpenCompanion());
  ASSIGN_OR_RETURN(images_, ImageStore::Start({.memory_bytes = config_.mirror_image_memory, .metrics = &metrics_}));
  if (!config_.mirror.empty()) RETURN_IF_ERROR(StartMirror());
  RETURN_IF_ERROR(OpenEndpoints());
  WatchDevices();
  ASSIGN_OR_RETURN(changes_, InterruptedChanges::Start(store_.get(), std::move(cut_off), {}));
  return absl::OkStatus();
}

void Daemon::Impl::Stop() {
  stop_request_.Make();
  if (stopped_.exchange(true)) return;
  for (const auto& device : devices_) device->health().SetListener(nullptr);
  endpoints_.MarkStopping();
  if (store_ != nullptr) DrainModels();
  if (mirror_ != nullptr) mirror_->Stop();
  world_member_.Leave();
  endpoints_.Stop();
  world_member_.StopServer();
}

absl::Status Daemon::Impl::OpenMachine(DeviceOpener open) {
  ASSIGN_OR_RETURN(const std::vector<Device> devices, DevicesOf(config_));
  ASSIGN_OR_RETURN(transport_, TransportOf(config_));
  WarnOfInsecureAddresses(config_, transport_.encrypts());
  engines_ = EnginesOf(config_);
  if (config_.nodes > 1) {
    ASSIGN_OR_RETURN(engines_.link_listener, LinkListener::Start(engines_.data_address));
  }
  ASSIGN_OR_RETURN(devices_, open(devices));
  ASSIGN_OR_RETURN(SocketDir socket_dir, SocketDir::Acquire(config_.socket_dir, !config_.allow_users.empty(),
                                                            keeper_.socket_dir_lock, SocketDir::kStartWait));
  socket_dir_ = std::make_unique<SocketDir>(std::move(socket_dir));
  return absl::OkStatus();
}

void Daemon::Impl::MakeStore() {
  if (!config_.save_dir.empty()) {
    savers_ = std::make_unique<Savers>(
        Saver::Options{.root = config_.save_dir, .policy = PolicyOf(config_), .calls = &disk_calls_});
  }
  store_ = std::make_unique<ModelStore>(ModelStore::Options{.world = MakeWorld(),
                                                            .step_timeout = config_.step_timeout,
                                                            .reader_hold = config_.reader_hold,
                                                            .memory_limit_bytes = config_.memory_limit_bytes,
                                                            .save_dir = config_.save_dir,
                                                            .savers = savers_.get(),
                                                            .moves = {.moves = keeper_.kept != nullptr},
                                                            .kept = keeper_.kept,
                                                            .end_stuck_readers = config_.end_stuck_readers,
                                                            .refusal = RefusalOf(config_)});
}

absl::Status Daemon::Impl::StartMirror() {
  // The allocator keeps pieces of planes for the next ones: else the kernel takes their pages and clears others for
  // almost each of them, a third of the work of a transfer.
  mallopt(M_MMAP_THRESHOLD, kLookaheadBytes);
  mallopt(M_TRIM_THRESHOLD, 2 * kLookaheadBytes);
  const auto open = [this](const std::string& address) -> std::shared_ptr<grpc::Channel> {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
    // Planes come in large frames, with so much under way on a link of long delay, and are read in pieces that stay in a
    // cache until they are copied.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
    arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 128 << 10);
    arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 128 << 10);
    return grpc::CreateCustomChannel(address, transport_.ToNode(), arguments);
  };
  ASSIGN_OR_RETURN(
      mirror_, Mirror::Start(
                   {.name = MirrorName(config_),
                    .source = {.address = config_.mirror,
                               .open = open,
                               .explain = [this](const absl::Status& status) { return transport_.WithAdvice(status); }},
                    .devices = DevicePointers(),
                    .activates = config_.mirror_activate == "auto",
                    .publication = {.reader_hold = config_.reader_hold, .metrics = &metrics_},
                    .memory_limit_bytes = config_.memory_limit_bytes,
                    .left_readers = &store_->left_readers()}));
  return absl::OkStatus();
}

std::vector<ComputeDevice*> Daemon::Impl::DevicePointers() const {
  std::vector<ComputeDevice*> devices;
  for (const auto& device : devices_) devices.push_back(device.get());
  return devices;
}

World Daemon::Impl::MakeWorld() {
  Cluster* const cluster = world_member_.cluster();
  const std::vector<int> counts = cluster->device_counts();
  return {.cluster = cluster,
          .devices = DevicePointers(),
          .first_rank = std::accumulate(counts.begin(), counts.begin() + config_.node, 0),
          .world_size = std::accumulate(counts.begin(), counts.end(), 0),
          .engines = engines_,
          .metrics = &metrics_};
}

absl::StatusOr<std::vector<InterruptedChange>> Daemon::Impl::TakeOver(const std::stop_token& stop) {
  // A request to node 0 may wait.
  const std::stop_callback give_up(stop, [this] { world_member_.GiveUp(); });
  return store_->TakeOver();
}

absl::Status Daemon::Impl::OpenCompanion() {
  ASSIGN_OR_RETURN(std::vector<uid_t> users, UsersOf(config_));
  ASSIGN_OR_RETURN(companion_,
                   CompanionServer::Start({.path = socket_dir_->companion_path(),
                                           .allowed_users = std::move(users),
                                           .restore_directory = [this] { return socket_dir_->Restore(); },
                                           .max_connections = CompanionConnectionsWithin(DescriptorLimit()),
                                           .on_gone = [this](const std::string& token) { callers_.Gone(token); }}));
  callers_.SetCompanion(companion_.get());
  return absl::OkStatus();
}

absl::Status Daemon::Impl::OpenEndpoints() {
  ASSIGN_OR_RETURN(workers_, CallWorkers::Start());
  return endpoints_.Open({.config = &config_,
                          .transport = &transport_,
                          .socket_dir = socket_dir_.get(),
                          .store = store_.get(),
                          .restores = restores_.get(),
                          .images = images_.get(),
                          .mirror = mirror_.get(),
                          .callers = &callers_,
                          .workers = &workers_,
                          .lifetime = Lifetime(),
                          .restarts = keeper_.restarts});
}

AdminService::Lifetime Daemon::Impl::Lifetime() {
  AdminService::Lifetime lifetime;
  lifetime.drain = [this] {
    if (stop_request_.Make()) Log(LogLevel::kInfo, "draining", {{"call", "Drain"}});
  };
  if (keeper_.restart != nullptr) lifetime.restart = std::bind_front(&StopRequest::MakeForRestart, &stop_request_);
  lifetime.rollback = keeper_.rollback;
  lifetime.insecure_addresses = InsecureAddresses(config_, transport_.encrypts());
  return lifetime;
}

void Daemon::Impl::WatchDevices() {
  for (const auto& device : devices_) {
    device->health().SetListener([this, name = device->Name()](const absl::Status& why) {
      Log(LogLevel::kError, "device is broken", {{"device", name}, {"why", why.ToString()}});
      endpoints_.MarkBroken();
    });
  }
}

void Daemon::Impl::DrainModels() {
  const SteadyTime deadline = SteadyDeadline(config_.drain_timeout);
  // Read once: a request of restart that comes too late must not drop unsaved models.
  const bool loses_models = stop_request_.loses_models();
  const auto saves = stop_request_.models_stay() ? ModelStore::DrainSaves::kUnderWay : ModelStore::DrainSaves::kUnsaved;
  if (restores_ != nullptr) restores_->BeginDrain();
  WarnOfWhatIsLost();
  store_->Drain(deadline, stop_request_.Reason(savers_ != nullptr && config_.save_on_drain), saves);
  changes_.reset();
  if (loses_models) store_->DropKept();
}

void Daemon::Impl::WarnOfWhatIsLost() const {
  if (stop_request_.models_stay() || savers_ != nullptr) return;
  for (const std::shared_ptr<Model>& model : store_->List()) {
    const int64_t commit_number = model->committed().commits.numbers().commit_number;
    if (commit_number == 0) continue;
    Log(LogLevel::kWarning, "commits are lost: no --save-dir to save them",
        {{"model", model->spec().name}, {"commit", absl::StrCat(commit_number)}});
  }
}

std::string Daemon::Impl::Summary() const {
  if (mirror_ != nullptr)
    return absl::StrCat("mirror of ", config_.mirror, " with ", mirror_->List().size(), " models");
  const std::vector<std::shared_ptr<Model>> models = store_->List();
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(models.size(), kMostModelsNamed); ++i) {
    named.push_back(absl::StrCat(models[i]->spec().name, " at commit ",
                                 models[i]->state().snapshot().numbers.commit_number,
                                 models[i]->trainers().activity().running ? ", training" : ""));
  }
  if (models.size() > named.size()) named.push_back(absl::StrCat(models.size() - named.size(), " more"));
  return absl::StrCat("node ", config_.node, " of ", config_.nodes, " on ", absl::StrJoin(config_.devices, ","), "; ",
                      models.empty() ? "no models" : absl::StrJoin(named, "; "));
}

absl::Status Daemon::Check(const DaemonConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<Device> devices, DevicesOf(config));
  RETURN_IF_ERROR(CheckFolders(config));
  RETURN_IF_ERROR(TransportOf(config).status());
  RETURN_IF_ERROR(CheckAddresses(config));
  if (!config.data_address.empty()) RETURN_IF_ERROR(UseAddressForNccl(config.data_address));
  return LoadEngineLibraries(devices, config.nodes, EnginesOf(config)).status();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonConfig& config, DeviceOpener open,
                                                      const std::stop_token& stop, KeeperServices keeper_services) {
  // gRPC is never shut down: its last user would wait up to ten seconds for a poller of large messages.
  static const bool initialized = (grpc_init(), true);
  (void)initialized;
  // Health checking must be enabled before any server is built.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto impl = std::make_unique<Impl>(config, std::move(keeper_services));
  RETURN_IF_ERROR(impl->Start(open, stop));
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;
void Daemon::Wait() { impl_->stop_request().Await(); }
void Daemon::RequestStop() { impl_->stop_request().Make(); }
void Daemon::Stop() { impl_->Stop(); }
bool Daemon::left_unsaved() const { return impl_->store().left_unsaved(); }
absl::Duration Daemon::StopTimeout(const DaemonConfig& config) {
  return config.drain_timeout + (config.save_dir.empty() ? absl::ZeroDuration() : config.save_timeout);
}

std::string Daemon::tcp_address() const { return impl_->endpoints().tcp_address(); }
std::string Daemon::metrics_address() const { return impl_->endpoints().metrics_address(); }
std::string Daemon::Summary() const { return impl_->Summary(); }

}  // namespace paramshard::server
