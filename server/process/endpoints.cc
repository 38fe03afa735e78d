#include "server/process/endpoints.h"

#include <sys/socket.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "paramshard/v1/reader.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/base/user_quota.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/observe/log.h"
#include "server/process/settings.h"

namespace paramshard::server {
namespace {

// Largest number of threads that gRPC starts for calls without a worker of ours: reflection, and calls of other
// daemons. Without a free thread a call gets RESOURCE_EXHAUSTED.
constexpr int kMaxGrpcThreads = 8;

absl::StatusOr<std::optional<CheckpointRequest>> RestoreAtCreation(const DaemonConfig& config) {
  if (config.restore.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(CheckpointRequest request, ParseCheckpointRequest(config.restore));
  return request;
}

// Returns the address with the port that was picked for it.
std::string BoundAddress(const std::string& address, const ListeningSocket& socket) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", socket.port);
}

}  // namespace

absl::Status Endpoints::Open(Options options) {
  ASSIGN_OR_RETURN(std::optional<CheckpointRequest> restore, RestoreAtCreation(*options.config));
  metrics_page_ = std::make_unique<MetricsPage>(
      MetricsPage::Options{.store = options.store,
                           .mirror = options.mirror,
                           .tls_cert = options.config->tls_cert,
                           .insecure_addresses = static_cast<int>(options.lifetime.insecure_addresses.size()),
                           .restarts = options.restarts});
  if (const std::string& address = options.config->metrics_listen; !address.empty()) {
    RETURN_IF_ERROR(ServeMetrics(address));
  }
  trainer_service_ = std::make_unique<TrainerService>(options.store, options.restores, options.callers, options.workers,
                                                      std::move(restore));
  // Without certificates --insecure says that anyone may connect.
  const bool admits_strangers = options.config->insecure && !options.transport->encrypts();
  mirror_service_ = std::make_unique<MirrorService>(
      options.store, options.images, options.callers, options.workers,
      admits_strangers ? Callers::Strangers::kAreAdmitted : Callers::Strangers::kAreRefused);
  admin_service_ = std::make_unique<AdminService>(
      options.store, options.restores, metrics_page_.get(),
      AdminService::Mirrors{.own = options.mirror, .asking = mirror_service_.get(), .images = options.images},
      options.callers, options.workers, std::move(options.lifetime));
  reader_service_ = std::make_unique<ReaderService>(options.store, options.mirror, options.callers, options.workers,
                                                    options.config->trust_gpu_readers);
  RETURN_IF_ERROR(ServeCalls(options));
  // Also by name: the health of trainers' calls may differ from the health of inspection.
  for (const char* service : {v1::TrainerService::service_full_name(), v1::AdminService::service_full_name(),
                              v1::ReaderService::service_full_name(), v1::MirrorService::service_full_name()}) {
    servers_.SetHealth(service, true);
  }
  servers_.SetHealth(true);
  return absl::OkStatus();
}

absl::Status Endpoints::ServeMetrics(const std::string& address) {
  ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, Listen("--metrics-listen", address));
  metrics_address_ = BoundAddress(address, sockets.front());
  PageServer::Options options;
  options.content_type = std::string(kExpositionContentType);
  options.page = [page = metrics_page_.get()] { return page->Text(); };
  for (ListeningSocket& socket : sockets) options.listeners.push_back(std::move(socket.tcp));
  ASSIGN_OR_RETURN(metrics_server_, PageServer::Start(std::move(options)));
  Log(LogLevel::kInfo, "serving metrics", {{"address", metrics_address_}});
  return absl::OkStatus();
}

absl::Status Endpoints::ServeCalls(const Options& options) {
  const DaemonConfig& config = *options.config;
  std::vector<ListeningSocket> sockets(1);
  ASSIGN_OR_RETURN(
      sockets[0].path,
      ListeningPath::Create({.path = options.socket_dir->grpc_path(),
                             .type = SOCK_STREAM,
                             .mode = config.allow_users.empty() ? 0600U : 0666U,
                             .restore_directory = [directory = options.socket_dir] { return directory->Restore(); }}));
  if (config.listen.has_value()) {
    ASSIGN_OR_RETURN(std::vector<ListeningSocket> more, Listen("--listen", *config.listen));
    tcp_address_ = BoundAddress(*config.listen, more[0]);
    std::move(more.begin(), more.end(), std::back_inserter(sockets));
  }
  ASSIGN_OR_RETURN(const std::vector<uid_t> allowed, UsersOf(config));
  std::set<UserQuota::User> users(allowed.begin(), allowed.end());
  if (config.listen.has_value()) users.insert(std::nullopt);
  ASSIGN_OR_RETURN(servers_, GrpcServers::Start({.sockets = std::move(sockets),
                                                 .users = std::move(users),
                                                 .credentials = options.transport->ForTools(),
                                                 .connections = options.transport->MakePeerConnections(),
                                                 .services = {trainer_service_.get(), admin_service_.get(),
                                                              reader_service_.get(), mirror_service_.get()},
                                                 .max_threads = kMaxGrpcThreads,
                                                 .pings = GrpcServers::Pings::kAreNot}));
  return absl::OkStatus();
}

void Endpoints::MarkBroken() const {
  servers_.SetHealth("", false);
  servers_.SetHealth(v1::TrainerService::service_full_name(), false);
}

}  // namespace paramshard::server
