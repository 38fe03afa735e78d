#include "server/process/world_member.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/engines.h"
#include "server/models/state_recovery.h"
#include "server/observe/log.h"
#include "server/process/settings.h"
#include "server/world/remote_cluster.h"

namespace paramshard::server {
namespace {

// Each node's stream needs one thread, and a second one while its certificate is renewed; calls need some.
constexpr int MaxClusterThreads(int nodes) { return 2 * nodes + 1024; }

absl::StatusOr<WorldTerms> TermsOf(const DaemonConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<Device> devices, DevicesOf(config));
  EngineSettings engines = EnginesOf(config);
  engines.nccl_psk_file.clear();  // Daemon::Check has already passed it to NCCL
  ASSIGN_OR_RETURN(const std::string engine_library, LoadEngineLibraries(devices, config.nodes, engines));
  return WorldTerms{.world = config.world, .save_dir = config.save_dir, .engine_library = engine_library};
}

// Each return interrupts the other daemons for a moment, and for kLinkTimeout if the link is still cut.
absl::Duration FirstStayOf(const DaemonConfig& config) { return std::max(2 * config.replica_grace, absl::Seconds(1)); }

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

absl::Status WorldMember::Join(int devices, const std::stop_token& stop) {
  if (config_.nodes == 1) {
    ASSIGN_OR_RETURN(own_cluster_, MakeLocalCluster(devices));
    cluster_ = own_cluster_.get();
  } else {
    Log(LogLevel::kInfo, "joining the world",
        {{"node", absl::StrCat(config_.node, "/", config_.nodes)},
         {"coordinator", config_.cluster_address},
         {"timeout", absl::FormatDuration(config_.join_timeout)}});
    ASSIGN_OR_RETURN(const WorldTerms terms, TermsOf(config_));
    RETURN_IF_ERROR(config_.node == 0 ? StartCoordinator(devices, terms) : JoinCoordinator(devices, terms, stop));
  }
  const std::stop_callback give_up(stop, [this] { GiveUp(); });
  return cluster_->AwaitWorld(config_.join_timeout);
}

absl::Status WorldMember::JoinCoordinator(int devices, const WorldTerms& terms, const std::stop_token& stop) {
  RemoteOptions options{.node = config_.node,
                        .nodes = config_.nodes,
                        .devices = devices,
                        .coordinator_address = config_.cluster_address,
                        .terms = terms,
                        .address = PublicAddress(config_),
                        .make_credentials = [this] { return transport_.ToCoordinator(); },
                        .join_timeout = config_.join_timeout,
                        .doubt_timeout = config_.doubt_timeout,
                        .stop = stop,
                        .metrics = metrics_};
  if (transport_.encrypts()) options.own_certificate = [this] { return transport_.OwnCertificate(); };
  absl::StatusOr<std::unique_ptr<Cluster>> joined = MakeRemoteCluster(options);
  if (!joined.ok()) return transport_.WithAdvice(joined.status());
  own_cluster_ = *std::move(joined);
  cluster_ = own_cluster_.get();
  return absl::OkStatus();
}

// Reads the decisions of the previous server of node 0 before other nodes can ask for them.
absl::Status WorldMember::StartCoordinator(int devices, const WorldTerms& terms) {
  CoordinatorOptions options{.nodes = config_.nodes, .devices = devices, .terms = terms};
  options.check_speaker = [this](const grpc::AuthContext& caller, int node) {
    return transport_.CheckSpeaksFor(caller, node);
  };
  if (keeper_.kept != nullptr) {
    ASSIGN_OR_RETURN(options.closed, ReadClosedEpochs(*keeper_.kept));
  }
  if (KeepsDecisions(config_)) RETURN_IF_ERROR(NameFlag("--state-dir", OpenDecisionLog(options)));
  options.quorum = {
      .min_nodes = config_.min_replicas, .timeout = config_.replica_grace, .first_stay = FirstStayOf(config_)};
  options.device_counts = KnownDeviceCounts(options);
  ASSIGN_OR_RETURN(CoordinatorNode node, MakeCoordinatorCluster(options));
  coordinator_ = std::make_unique<CoordinatorNode>(std::move(node));
  cluster_ = coordinator_->cluster.get();
  return ServeOtherNodes();
}

absl::Status WorldMember::OpenDecisionLog(CoordinatorOptions& options) {
  ASSIGN_OR_RETURN(decision_log_, DecisionLog::Open(disk_calls_, config_.state_dir, keeper_.state_dir_lock));
  ASSIGN_OR_RETURN(options.closed, decision_log_->Reconcile(options.closed));
  options.log = decision_log_.get();
  return absl::OkStatus();
}

absl::Status WorldMember::ServeOtherNodes() {
  ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, Listen("--cluster-address", config_.cluster_address));
  ASSIGN_OR_RETURN(server_, GrpcServers::Start({.sockets = std::move(sockets),
                                                .users = {std::nullopt},
                                                .credentials = transport_.ForNodes(config_.nodes),
                                                .connections = transport_.MakePeerConnections(),
                                                .services = {coordinator_->service.get()},
                                                .max_threads = MaxClusterThreads(config_.nodes),
                                                .pings = GrpcServers::Pings::kAreAnswered}));
  return absl::OkStatus();
}

void WorldMember::GiveUp() const {
  if (config_.nodes > 1) cluster_->Stop();
}

void WorldMember::Leave() const {
  if (cluster_ != nullptr) cluster_->Stop();
}

}  // namespace paramshard::server
