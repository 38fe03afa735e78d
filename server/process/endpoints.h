// Where trainers, tools and monitoring reach the daemon: its gRPC services and its metrics page.
#ifndef PARAMSHARD_SERVER_PROCESS_ENDPOINTS_H_
#define PARAMSHARD_SERVER_PROCESS_ENDPOINTS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/checkpoints/restores.h"
#include "server/edge/admin_service.h"
#include "server/edge/callers.h"
#include "server/edge/guarded_service.h"
#include "server/edge/metrics_page.h"
#include "server/edge/mirror_service.h"
#include "server/edge/reader_service.h"
#include "server/edge/socket_dir.h"
#include "server/edge/trainer_service.h"
#include "server/edge/transport.h"
#include "server/mirrors/image_store.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"
#include "server/observe/page_server.h"
#include "server/process/config.h"
#include "server/process/grpc_servers.h"

namespace paramshard::server {

// MarkBroken and MarkStopping are thread-safe once Open has returned.
class Endpoints {
 public:
  // Everything that is pointed to outlives the endpoints.
  struct Options {
    const DaemonConfig* config = nullptr;
    const Transport* transport = nullptr;
    SocketDir* socket_dir = nullptr;
    ModelStore* store = nullptr;
    Restores* restores = nullptr;
    ImageStore* images = nullptr;
    Mirror* mirror = nullptr;  // null: this daemon is none
    Callers* callers = nullptr;
    CallWorkers* workers = nullptr;
    AdminService::Lifetime lifetime;
    std::optional<int64_t> restarts = {};  // see MetricsPage
  };
  // Binds the sockets, and serves; on return health is SERVING. Called once. Errors of Listen, ListeningPath::Create
  // and GrpcServers::Start.
  absl::Status Open(Options options);

  // Health is NOT_SERVING: that of the daemon and of trainers' calls; inspection still works.
  void MarkBroken() const;
  // Health is NOT_SERVING, of everything.
  void MarkStopping() const { servers_.SetHealth(false); }
  // Ends the gRPC servers. The metrics page is served until the end of this object.
  void Stop() { servers_.Stop(); }

  // Returns the address where gRPC is served over TCP; empty if it is not.
  const std::string& tcp_address() const { return tcp_address_; }
  // Returns the address of the metrics page; empty if it is not served.
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  absl::Status ServeMetrics(const std::string& address);
  absl::Status ServeCalls(const Options& options);

  // Destroyed in reverse order: callers before what they call.
  std::unique_ptr<MetricsPage> metrics_page_;
  std::unique_ptr<PageServer> metrics_server_;  // null without metrics_listen
  std::string metrics_address_;
  std::unique_ptr<TrainerService> trainer_service_;
  std::unique_ptr<MirrorService> mirror_service_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<ReaderService> reader_service_;
  GrpcServers servers_;
  std::string tcp_address_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_ENDPOINTS_H_
