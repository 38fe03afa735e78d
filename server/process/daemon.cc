#include "server/process/daemon.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/base/descriptor_limit.h"
#include "server/base/disk.h"
#include "server/base/disk_calls.h"
#include "server/base/grpc_deadline.h"
#include "server/base/keepalive.h"
#include "server/base/own_folder.h"
#include "server/base/user_quota.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/restores.h"
#include "server/checkpoints/saver.h"
#include "server/data_plane/engines.h"
#include "server/device/compute_device.h"
#include "server/edge/admin_service.h"
#include "server/edge/callers.h"
#include "server/edge/companion_server.h"
#include "server/edge/data_address.h"
#include "server/edge/guarded_service.h"
#include "server/edge/interrupted_changes.h"
#include "server/edge/messages.h"
#include "server/edge/metrics_page.h"
#include "server/edge/socket_dir.h"
#include "server/edge/trainer_service.h"
#include "server/edge/transport.h"
#include "server/models/model_store.h"
#include "server/models/state_recovery.h"
#include "server/observe/log.h"
#include "server/observe/metric_registry.h"
#include "server/observe/page_server.h"
#include "server/process/connection_acceptor.h"
#include "server/process/values.h"
#include "server/world/coordinator_cluster.h"
#include "server/world/decision_log.h"
#include "server/world/remote_cluster.h"

namespace paramshard::server {
bool KeepsDecisions(const DaemonConfig& config) {
  return config.node == 0 && config.nodes > 1 && !config.state_dir.empty();
}

namespace {

// Largest number of concurrent streams of a connection, and of unread bytes of a stream.
constexpr int kMaxStreamsOfConnection = 1024;
constexpr int kStreamWindowBytes = 64 << 10;
// Timeout of TLS and the first bytes of HTTP/2: a silent client has no certificate to show.
constexpr int kHandshakeMilliseconds = 10'000;
// Largest number of threads that gRPC starts for calls without a worker of ours: reflection, and calls of other
// daemons. Without a free thread a call gets RESOURCE_EXHAUSTED.
constexpr int kMaxGrpcThreads = 8;
// Largest memory of gRPC for each user: messages that no worker has taken yet, connections and calls.
constexpr size_t kMaxGrpcBytes = size_t{1} << 30;
// Each node's stream needs one thread, and a second one while its certificate is renewed; calls need some.
constexpr int MaxClusterThreads(int nodes) { return 2 * nodes + 1024; }
// Most models named in the summary, which has one line.
constexpr size_t kMostModelsNamed = 8;
// Time after drain_timeout for handlers to notice the end of their streams.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);

absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& names) {
  std::vector<Device> devices;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(devices.emplace_back(), ParseDevice(name));
  }
  return devices;
}

absl::StatusOr<std::vector<uid_t>> AllowedUsers(const std::vector<std::string>& names) {
  std::vector<uid_t> users{geteuid()};
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(users.emplace_back(), FindUser(name));
  }
  return users;
}

EngineSettings EnginesOf(const DaemonConfig& config) {
  EngineSettings settings{.mesh_inside = config.local_engine == "mesh",
                          .nccl_library = config.nccl_library,
                          .nccl_psk_file = config.nccl_psk_file};
  if (!config.data_address.empty()) settings.data_address = config.data_address;
  return settings;
}

absl::StatusOr<WorldTerms> TermsOf(const DaemonConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<Device> devices, ParseDevices(config.devices));
  EngineSettings engines = EnginesOf(config);
  engines.nccl_psk_file.clear();  // Check has already passed it to NCCL
  ASSIGN_OR_RETURN(const std::string engine_library, LoadEngineLibraries(devices, config.nodes, engines));
  return WorldTerms{.world = config.world, .save_dir = config.save_dir, .engine_library = engine_library};
}

// Each return interrupts the other daemons for a moment, and for kLinkTimeout if the link is still cut.
absl::Duration FirstStayOf(const DaemonConfig& config) { return std::max(2 * config.replica_grace, absl::Seconds(1)); }

absl::StatusOr<Transport> TransportOf(const DaemonConfig& config) {
  Transport::Options options{.files = TlsFilesOf(config), .deny_file = config.tls_deny_file, .node = config.node};
  for (const std::string& role : config.tls_roles) {
    ASSIGN_OR_RETURN(options.roles.emplace_back(), tls::ParseRolePattern(role));
  }
  return Transport::Create(options, absl::Now());
}

absl::Status NameFlag(absl::string_view flag, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::Status CheckFolders(const DaemonConfig& config) {
  DiskCalls calls;
  const Disk disk(&calls);
  if (!config.save_dir.empty()) RETURN_IF_ERROR(NameFlag("--save-dir", CheckOwnFolder(disk, config.save_dir)));
  if (!KeepsDecisions(config)) return absl::OkStatus();
  return NameFlag("--state-dir", CheckOwnFolder(disk, config.state_dir));
}

absl::StatusOr<std::vector<ListeningSocket>> Listen(absl::string_view flag, const std::string& address) {
  absl::StatusOr<std::vector<ListeningSocket>> sockets = ListenOnAddress(address);
  RETURN_IF_ERROR(NameFlag(flag, sockets.status()));
  return sockets;
}

// Checks addresses before anything else: a daemon that joins a world would notice a wrong address late.
absl::Status CheckAddresses(const DaemonConfig& config) {
  const bool coordinates = config.nodes > 1 && config.node == 0;
  for (const auto& [flag, address] :
       {std::pair("--listen", config.listen.value_or("")), std::pair("--metrics-listen", config.metrics_listen),
        std::pair("--cluster-address", coordinates ? config.cluster_address : "")}) {
    if (!address.empty()) RETURN_IF_ERROR(NameFlag(flag, CheckIsLocal(address)));
  }
  return absl::OkStatus();
}

SavePolicy PolicyOf(const DaemonConfig& config) {
  return {.every_commits = config.save_every_commits,
          .every_time = config.save_every_time,
          .keep = {.newest = config.save_keep, .every = config.save_keep_every},
          .on_drain = config.save_on_drain,
          .timeout = config.save_timeout};
}

bool MakesSaves(const DaemonConfig& config) { return !config.save_dir.empty(); }

absl::StatusOr<std::optional<CheckpointRequest>> RestoreAtCreation(const DaemonConfig& config) {
  if (config.restore.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(CheckpointRequest request, ParseCheckpointRequest(config.restore));
  return request;
}

// gRPC servers, one for each user, and their acceptor, which stops first.
struct RunningServers {
  std::vector<std::unique_ptr<grpc::Server>> servers;
  std::unique_ptr<ConnectionAcceptor> acceptor;

  // Sets the health of a service; "" is the daemon.
  void SetHealth(const std::string& service, bool serving) const {
    for (const auto& server : servers) server->GetHealthCheckService()->SetServingStatus(service, serving);
  }
  void SetHealth(bool serving) const {
    for (const auto& server : servers) server->GetHealthCheckService()->SetServingStatus(serving);
  }
  void Stop() {
    acceptor.reset();
    const auto deadline = GrpcDeadline(kShutdownGrace);
    for (const auto& server : servers) server->Shutdown(deadline);
  }
};

// Rejects calls with compressed messages by their metadata: the compressed size does not limit the inflated size. Keeps
// flow-control windows small, so that unrequested data fills the socket and not the daemon.
void LimitWhatIsReceived(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  for (int algorithm = GRPC_COMPRESS_NONE + 1; algorithm < GRPC_COMPRESS_ALGORITHMS_COUNT; ++algorithm) {
    builder.SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(algorithm), false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
}

// At its memory limit gRPC cancels calls and accepts no connections, until memory is free again.
void LimitResources(grpc::ServerBuilder& builder, int threads) {
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(threads);
  quota.Resize(kMaxGrpcBytes);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
}

// Tells if clients answer pings. A gRPC client does so only while one of its threads waits for a call: daemons always
// have such a thread; trainers and tools do not.
enum class Pings : uint8_t { kAreAnswered, kAreNot };

void LogOpenAddress(absl::string_view flag, const std::string& address) {
  Log(LogLevel::kWarning, "address is used without authentication",
      {{"flag", std::string(flag)}, {"address", address}});
}

// Credentials and connections of callers over TCP.
struct TcpAccess {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::shared_ptr<PeerConnections> connections;  // null without certificates
};

// Starts one gRPC server for each user, so that users do not share gRPC's memory.
absl::StatusOr<RunningServers> StartServers(std::vector<ListeningSocket> sockets,
                                            const std::set<UserQuota::User>& users, const TcpAccess& tcp_access,
                                            const std::vector<grpc::Service*>& services, int max_threads, Pings pings) {
  RunningServers started;
  started.acceptor = std::make_unique<ConnectionAcceptor>(
      std::move(sockets), ConnectionAcceptor::Options{.max_connections = CompanionConnectionsWithin(DescriptorLimit()),
                                                      .peers = tcp_access.connections});
  for (const UserQuota::User user : users) {
    grpc::ServerBuilder builder;
    LimitWhatIsReceived(builder);
    LimitResources(builder, max_threads);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
    if (pings == Pings::kAreAnswered) SetKeepalive(builder);
    if (!user.has_value() && tcp_access.connections != nullptr) {
      builder.experimental().SetInterceptorCreators(PeerConnections::Interceptors(tcp_access.connections));
    }
    started.acceptor->AddServer(user, builder,
                                user.has_value() ? grpc::InsecureServerCredentials() : tcp_access.credentials);
    for (grpc::Service* service : services) builder.RegisterService(service);
    started.servers.push_back(builder.BuildAndStart());
    if (started.servers.back() == nullptr) {
      started.servers.pop_back();
      return absl::InternalError("failed to start a gRPC server");
    }
  }
  RETURN_IF_ERROR(started.acceptor->Start());
  return started;
}

// Returns true if the keeper may have accepted a request in spite of this error.
bool MayBeTakenOver(const absl::Status& asked) { return absl::IsDeadlineExceeded(asked) || absl::IsUnavailable(asked); }

// Returns the device counts of the nodes from an earlier epoch. If epochs may have fewer nodes, a restarted server of
// node 0 then does not wait for a lost node. Ignores epochs of another world.
std::vector<int> KnownDeviceCounts(const CoordinatorOptions& options) {
  if (options.quorum.Needed(options.nodes) == options.nodes) return {};
  for (const ClosedEpoch& closed : options.closed) {
    const std::vector<int>& counts = closed.device_counts;
    if (static_cast<int>(counts.size()) == options.nodes && counts.front() == options.devices) return counts;
  }
  return {};
}

}  // namespace

// Members are destroyed in reverse order: callers before what they call.
class Daemon::Impl {
 public:
  Impl(const DaemonConfig& config, KeeperServices keeper_services)
      : config_(config), keeper_services_(std::move(keeper_services)) {}
  ~Impl() { Stop(); }

  absl::Status Start(DeviceOpener open, const std::stop_token& stop);
  void Wait() { stop_requested_.WaitForNotification(); }
  bool RequestStop();  // returns true for the first request
  void Stop();
  bool left_unsaved() const { return store_ != nullptr && store_->left_unsaved(); }
  std::string tcp_address() const { return tcp_address_; }
  std::string metrics_address() const { return metrics_address_; }
  std::string Summary() const;

 private:
  void WarnOfWhatIsOpen() const;
  // Returns flags with addresses off loopback that are used without certificates.
  std::vector<std::string> InsecureAddresses() const;
  absl::Status JoinWorld(int devices, const std::stop_token& stop);
  // Returns a reader of the certificate that is shown to node 0; null without certificates.
  std::function<absl::StatusOr<tls::Certificate>()> CertificateReader() const;
  absl::Status OpenDecisionLog(CoordinatorOptions& options);
  absl::Status StartCoordinator(int devices);
  absl::Status ServeCluster();
  // Takes over the models of the previous server. Returns its unfinished changes.
  absl::StatusOr<std::vector<InterruptedChange>> TakeOver(const std::stop_token& stop);
  // Cancels waits for other daemons.
  void GiveUpOthers();
  // See ListeningPath::Options.
  std::function<absl::Status()> RestoreSocketDir() {
    return [this] { return socket_dir_->Restore(); };
  }
  absl::Status OpenCompanion();
  absl::Status Serve();
  absl::Status ServeMetrics();
  KeptStore* kept() const { return keeper_services_.kept; }
  World MakeWorld();
  AdminService::Lifetime Lifetime();
  void WatchDevices();
  // Returns true if the next server takes over the models as they are, so that nothing is lost.
  bool ModelsStay() const;
  // Returns the error that trainers get when the daemon stops.
  absl::Status DrainReason() const;
  // Logs models whose commits are lost because no saves are made.
  void WarnOfWhatIsLost() const;

  const DaemonConfig config_;
  const KeeperServices keeper_services_;
  MetricRegistry metrics_;  // used by the members below
  EngineSettings engines_;
  Transport transport_;
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  std::unique_ptr<SocketDir> socket_dir_;
  DiskCalls disk_calls_;
  std::unique_ptr<DecisionLog> decision_log_;     // on node 0 of several, with a state_dir
  std::unique_ptr<CoordinatorNode> coordinator_;  // on node 0 of several
  std::unique_ptr<Cluster> own_cluster_;          // on other nodes
  Cluster* cluster_ = nullptr;
  RunningServers cluster_server_;
  Callers callers_;
  std::unique_ptr<CompanionServer> companion_;
  CallWorkers workers_;
  std::unique_ptr<Savers> savers_;  // null without a save_dir
  // A model's destructor waits for the end of its epoch, which may still answer trainers through the members above.
  std::unique_ptr<ModelStore> store_;
  std::unique_ptr<Restores> restores_;
  std::unique_ptr<InterruptedChanges> changes_;
  std::unique_ptr<MetricsPage> metrics_page_;
  std::unique_ptr<PageServer> metrics_server_;  // null without metrics_listen
  std::string metrics_address_;
  std::unique_ptr<TrainerService> trainer_service_;
  std::unique_ptr<AdminService> admin_service_;
  RunningServers servers_;
  std::string tcp_address_;
  absl::Mutex restarting_;                   // held during requests to the keeper
  std::atomic<bool> next_is_other_ = false;  // the next server has another command, or must not take the models over
  std::atomic<bool> lose_models_ = false;    // kept memory of models is dropped at the end; implies next_is_other_
  absl::Notification stop_requested_;
  absl::Mutex mu_;
  bool requested_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

absl::Status Daemon::Impl::Start(DeviceOpener open, const std::stop_token& stop) {
  on_stop_.emplace(stop, [this] { RequestStop(); });
  RETURN_IF_ERROR(Check(config_));
  ASSIGN_OR_RETURN(const std::vector<Device> devices, ParseDevices(config_.devices));
  ASSIGN_OR_RETURN(transport_, TransportOf(config_));
  WarnOfWhatIsOpen();
  engines_ = EnginesOf(config_);
  if (config_.nodes > 1) {
    ASSIGN_OR_RETURN(engines_.link_listener, LinkListener::Start(engines_.data_address));
  }
  ASSIGN_OR_RETURN(devices_, open(devices));
  ASSIGN_OR_RETURN(SocketDir socket_dir, SocketDir::Acquire(config_.socket_dir, !config_.allow_users.empty(),
                                                            keeper_services_.socket_dir_lock, SocketDir::kStartWait));
  socket_dir_ = std::make_unique<SocketDir>(std::move(socket_dir));
  RETURN_IF_ERROR(JoinWorld(static_cast<int>(devices_.size()), stop));
  if (MakesSaves(config_)) {
    savers_ = std::make_unique<Savers>(
        Saver::Options{.root = config_.save_dir, .policy = PolicyOf(config_), .calls = &disk_calls_});
  }
  store_ = std::make_unique<ModelStore>(ModelStore::Options{.world = MakeWorld(),
                                                            .step_timeout = config_.step_timeout,
                                                            .memory_limit_bytes = config_.memory_limit_bytes,
                                                            .save_dir = config_.save_dir,
                                                            .savers = savers_.get(),
                                                            .moves = {.moves = kept() != nullptr},
                                                            .kept = kept()});
  ASSIGN_OR_RETURN(std::vector<InterruptedChange> cut_off, TakeOver(stop));
  restores_ = std::make_unique<Restores>(Restores::Options{.store = store_.get(), .timeout = config_.restore_timeout});
  RETURN_IF_ERROR(OpenCompanion());
  RETURN_IF_ERROR(Serve());
  ASSIGN_OR_RETURN(changes_, InterruptedChanges::Start(store_.get(), std::move(cut_off), {}));
  return absl::OkStatus();
}

void Daemon::Impl::WarnOfWhatIsOpen() const {
  for (const std::string& insecure : InsecureAddresses()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(insecure, ' ');
    LogOpenAddress(parts.first, parts.second);
  }
  // The metrics page never uses certificates.
  if (!config_.metrics_listen.empty() && !IsLoopbackAddress(config_.metrics_listen)) {
    LogOpenAddress("--metrics-listen", config_.metrics_listen);
  }
}

std::vector<std::string> Daemon::Impl::InsecureAddresses() const {
  std::vector<std::string> insecure;
  for (const auto& [flag, address] :
       {std::pair("--listen", config_.listen.value_or("")),
        std::pair("--cluster-address", config_.nodes > 1 ? config_.cluster_address : std::string())}) {
    if (transport_.encrypts() || address.empty() || IsLoopbackAddress(address)) continue;
    insecure.push_back(absl::StrCat(flag, " ", address));
  }
  return insecure;
}

absl::Status Daemon::Impl::JoinWorld(int devices, const std::stop_token& stop) {
  if (config_.nodes > 1) {
    Log(LogLevel::kInfo, "joining the world",
        {{"node", absl::StrCat(config_.node, "/", config_.nodes)},
         {"coordinator", config_.cluster_address},
         {"timeout", absl::FormatDuration(config_.join_timeout)}});
  }
  if (config_.nodes == 1) {
    ASSIGN_OR_RETURN(own_cluster_, MakeLocalCluster(devices));
    cluster_ = own_cluster_.get();
  } else if (config_.node == 0) {
    RETURN_IF_ERROR(StartCoordinator(devices));
  } else {
    ASSIGN_OR_RETURN(const WorldTerms terms, TermsOf(config_));
    absl::StatusOr<std::unique_ptr<Cluster>> joined =
        MakeRemoteCluster({.node = config_.node,
                           .nodes = config_.nodes,
                           .devices = devices,
                           .coordinator_address = config_.cluster_address,
                           .terms = terms,
                           .make_credentials = [this] { return transport_.ToCoordinator(); },
                           .own_certificate = CertificateReader(),
                           .join_timeout = config_.join_timeout,
                           .doubt_timeout = config_.doubt_timeout,
                           .stop = stop,
                           .metrics = &metrics_});
    if (!joined.ok()) return transport_.WithAdvice(joined.status());
    own_cluster_ = *std::move(joined);
    cluster_ = own_cluster_.get();
  }
  const std::stop_callback give_up(stop, [this] { GiveUpOthers(); });
  return cluster_->AwaitWorld(config_.join_timeout);
}

std::function<absl::StatusOr<tls::Certificate>()> Daemon::Impl::CertificateReader() const {
  if (!transport_.encrypts()) return nullptr;
  return [this] { return transport_.OwnCertificate(); };
}

absl::Status Daemon::Impl::OpenDecisionLog(CoordinatorOptions& options) {
  ASSIGN_OR_RETURN(decision_log_, DecisionLog::Open(&disk_calls_, config_.state_dir, keeper_services_.state_dir_lock));
  ASSIGN_OR_RETURN(options.closed, decision_log_->Reconcile(options.closed));
  options.log = decision_log_.get();
  return absl::OkStatus();
}

// Reads the decisions of the previous server of node 0 before other nodes can ask for them.
absl::Status Daemon::Impl::StartCoordinator(int devices) {
  ASSIGN_OR_RETURN(const WorldTerms terms, TermsOf(config_));
  CoordinatorOptions options{.nodes = config_.nodes, .devices = devices, .terms = terms};
  options.check_speaker = [this](const grpc::AuthContext& caller, int node) {
    return transport_.CheckSpeaksFor(caller, node);
  };
  if (kept() != nullptr) {
    ASSIGN_OR_RETURN(options.closed, ReadClosedEpochs(*kept()));
  }
  if (KeepsDecisions(config_)) RETURN_IF_ERROR(NameFlag("--state-dir", OpenDecisionLog(options)));
  options.quorum = {
      .min_nodes = config_.min_replicas, .timeout = config_.replica_grace, .first_stay = FirstStayOf(config_)};
  options.device_counts = KnownDeviceCounts(options);
  ASSIGN_OR_RETURN(CoordinatorNode node, MakeCoordinatorCluster(options));
  coordinator_ = std::make_unique<CoordinatorNode>(std::move(node));
  cluster_ = coordinator_->cluster.get();
  return ServeCluster();
}

absl::Status Daemon::Impl::ServeCluster() {
  ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, Listen("--cluster-address", config_.cluster_address));
  ASSIGN_OR_RETURN(cluster_server_,
                   StartServers(std::move(sockets), {std::nullopt},
                                {transport_.ForNodes(config_.nodes), transport_.MakePeerConnections()},
                                {coordinator_->service.get()}, MaxClusterThreads(config_.nodes), Pings::kAreAnswered));
  return absl::OkStatus();
}

World Daemon::Impl::MakeWorld() {
  const std::vector<int> counts = cluster_->device_counts();
  std::vector<ComputeDevice*> devices;
  for (const auto& device : devices_) devices.push_back(device.get());
  return {.cluster = cluster_,
          .devices = std::move(devices),
          .first_rank = std::accumulate(counts.begin(), counts.begin() + config_.node, 0),
          .world_size = std::accumulate(counts.begin(), counts.end(), 0),
          .engines = engines_,
          .metrics = &metrics_};
}

absl::StatusOr<std::vector<InterruptedChange>> Daemon::Impl::TakeOver(const std::stop_token& stop) {
  // A request to node 0 may wait.
  const std::stop_callback give_up(stop, [this] { GiveUpOthers(); });
  return store_->TakeOver();
}

// A single daemon waits for no other; if it is stopped during its start, it still saves the models that it takes over.
void Daemon::Impl::GiveUpOthers() {
  if (config_.nodes > 1) cluster_->Stop();
}

absl::Status Daemon::Impl::OpenCompanion() {
  ASSIGN_OR_RETURN(std::vector<uid_t> users, AllowedUsers(config_.allow_users));
  ASSIGN_OR_RETURN(companion_,
                   CompanionServer::Start({.path = socket_dir_->companion_path(),
                                           .allowed_users = std::move(users),
                                           .restore_directory = RestoreSocketDir(),
                                           .max_connections = CompanionConnectionsWithin(DescriptorLimit()),
                                           .on_gone = [this](const std::string& token) { callers_.Gone(token); }}));
  callers_.SetCompanion(companion_.get());
  return absl::OkStatus();
}

absl::Status Daemon::Impl::Serve() {
  ASSIGN_OR_RETURN(workers_, CallWorkers::Start());
  ASSIGN_OR_RETURN(std::optional<CheckpointRequest> restore, RestoreAtCreation(config_));
  metrics_page_ = std::make_unique<MetricsPage>(
      MetricsPage::Options{.store = store_.get(),
                           .tls_cert = config_.tls_cert,
                           .insecure_addresses = static_cast<int>(InsecureAddresses().size()),
                           .restarts = keeper_services_.restarts});
  RETURN_IF_ERROR(ServeMetrics());
  trainer_service_ =
      std::make_unique<TrainerService>(store_.get(), restores_.get(), &callers_, &workers_, std::move(restore));
  admin_service_ = std::make_unique<AdminService>(store_.get(), restores_.get(), metrics_page_.get(), &callers_,
                                                  &workers_, Lifetime());
  std::vector<ListeningSocket> sockets(1);
  ASSIGN_OR_RETURN(sockets[0].path, ListeningPath::Create({.path = socket_dir_->grpc_path(),
                                                           .type = SOCK_STREAM,
                                                           .mode = config_.allow_users.empty() ? 0600U : 0666U,
                                                           .restore_directory = RestoreSocketDir()}));
  if (config_.listen.has_value()) {
    ASSIGN_OR_RETURN(std::vector<ListeningSocket> more, Listen("--listen", *config_.listen));
    tcp_address_ = absl::StrCat(config_.listen->substr(0, config_.listen->rfind(':')), ":", more[0].port);
    std::move(more.begin(), more.end(), std::back_inserter(sockets));
  }
  ASSIGN_OR_RETURN(const std::vector<uid_t> allowed, AllowedUsers(config_.allow_users));
  std::set<UserQuota::User> users(allowed.begin(), allowed.end());
  if (config_.listen.has_value()) users.insert(std::nullopt);
  ASSIGN_OR_RETURN(servers_,
                   StartServers(std::move(sockets), users, {transport_.ForTools(), transport_.MakePeerConnections()},
                                {trainer_service_.get(), admin_service_.get()}, kMaxGrpcThreads, Pings::kAreNot));
  // Also by name: the health of trainers' calls may differ from the health of inspection.
  for (const char* service : {v1::TrainerService::service_full_name(), v1::AdminService::service_full_name()}) {
    servers_.SetHealth(service, true);
  }
  servers_.SetHealth(true);
  WatchDevices();
  return absl::OkStatus();
}

absl::Status Daemon::Impl::ServeMetrics() {
  if (config_.metrics_listen.empty()) return absl::OkStatus();
  const std::string& address = config_.metrics_listen;
  ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, Listen("--metrics-listen", address));
  metrics_address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", sockets.front().port);
  PageServer::Options options;
  options.content_type = std::string(kExpositionContentType);
  options.page = [page = metrics_page_.get()] { return page->Text(); };
  for (ListeningSocket& socket : sockets) options.listeners.push_back(std::move(socket.tcp));
  ASSIGN_OR_RETURN(metrics_server_, PageServer::Start(std::move(options)));
  Log(LogLevel::kInfo, "metrics are served", {{"address", metrics_address_}});
  return absl::OkStatus();
}

AdminService::Lifetime Daemon::Impl::Lifetime() {
  AdminService::Lifetime lifetime{.drain =
                                      [this] {
                                        if (RequestStop()) Log(LogLevel::kInfo, "draining", {{"call", "Drain"}});
                                      },
                                  .rollback = keeper_services_.rollback,
                                  .insecure_addresses = InsecureAddresses()};
  if (keeper_services_.restart == nullptr) return lifetime;
  lifetime.restart = [this](const ServerCommandChange& change, bool lose_models) -> absl::Status {
    absl::MutexLock lock(&restarting_);
    // A stop that was requested before must not become a restart.
    if (stop_requested_.HasBeenNotified()) return absl::UnavailableError("restart: the daemon drains");
    const bool is_other = change.program.has_value() || change.arguments.has_value() || lose_models;
    const bool was_other = next_is_other_;
    // Set before the request, and even if the keeper does not answer, so that a stop by a signal meanwhile saves.
    if (is_other) next_is_other_ = true;
    const absl::Status asked = keeper_services_.restart(change);
    if (!asked.ok() && !MayBeTakenOver(asked)) next_is_other_ = was_other;
    RETURN_IF_ERROR(asked);
    // The keeper starts the command of its last request.
    next_is_other_ = is_other;
    lose_models_ = lose_models;
    if (RequestStop()) Log(LogLevel::kInfo, "draining", {{"call", "Restart"}});
    return absl::OkStatus();
  };
  return lifetime;
}

std::string Daemon::Impl::Summary() const {
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

void Daemon::Impl::WatchDevices() {
  for (const auto& device : devices_) {
    device->health().SetListener([this, name = device->Name()](const absl::Status& why) {
      Log(LogLevel::kError, "device is broken", {{"device", name}, {"why", why.ToString()}});
      servers_.SetHealth("", false);
      servers_.SetHealth(v1::TrainerService::service_full_name(), false);
    });
  }
}

bool Daemon::Impl::RequestStop() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(requested_, true)) return false;
  stop_requested_.Notify();
  return true;
}

bool Daemon::Impl::ModelsStay() const { return kept() != nullptr && keeper_services_.is_followed() && !next_is_other_; }

absl::Status Daemon::Impl::DrainReason() const {
  if (keeper_services_.is_followed() && kept() != nullptr && !lose_models_) {
    return absl::UnavailableError("the daemon is restarting");
  }
  const bool saves = savers_ != nullptr && config_.save_on_drain;
  return absl::UnavailableError(saves ? "the daemon stops, and saves unsaved commits"
                                      : "the daemon stops; state that was not exported is lost");
}

void Daemon::Impl::WarnOfWhatIsLost() const {
  if (ModelsStay() || savers_ != nullptr) return;
  for (const std::shared_ptr<Model>& model : store_->List()) {
    const int64_t commit_number = model->commit_log().numbers().commit_number;
    if (commit_number == 0) continue;
    Log(LogLevel::kWarning, "commits are lost: no --save-dir to save them",
        {{"model", model->spec().name}, {"commit", absl::StrCat(commit_number)}});
  }
}

void Daemon::Impl::Stop() {
  RequestStop();
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
  }
  for (const auto& device : devices_) device->health().SetListener(nullptr);
  servers_.SetHealth(false);
  const SteadyTime deadline = SteadyDeadline(config_.drain_timeout);
  // Read once: a request of restart that comes too late must not drop unsaved models.
  const bool loses_models = lose_models_;
  const auto saves = ModelsStay() ? ModelStore::DrainSaves::kUnderWay : ModelStore::DrainSaves::kUnsaved;
  if (restores_ != nullptr) restores_->BeginDrain();
  if (store_ != nullptr) {
    WarnOfWhatIsLost();
    store_->Drain(deadline, DrainReason(), saves);
    changes_.reset();
    if (loses_models) store_->DropKept();
  }
  if (cluster_ != nullptr) cluster_->Stop();
  servers_.Stop();
  cluster_server_.Stop();
}

absl::Status Daemon::Check(const DaemonConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<Device> devices, ParseDevices(config.devices));
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
void Daemon::Wait() { impl_->Wait(); }
void Daemon::RequestStop() { impl_->RequestStop(); }
void Daemon::Stop() { impl_->Stop(); }
bool Daemon::left_unsaved() const { return impl_->left_unsaved(); }
absl::Duration Daemon::StopTimeout(const DaemonConfig& config) {
  return config.drain_timeout + (MakesSaves(config) ? config.save_timeout : absl::ZeroDuration());
}

std::string Daemon::tcp_address() const { return impl_->tcp_address(); }
std::string Daemon::metrics_address() const { return impl_->metrics_address(); }
std::string Daemon::Summary() const { return impl_->Summary(); }

}  // namespace paramshard::server
