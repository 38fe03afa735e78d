// The daemon: sockets, services, models, and the world it belongs to.
//
//   ASSIGN_OR_RETURN(auto daemon, Daemon::Start(config));
//   daemon->Wait();   // until Stop, or a Drain call
//   daemon->Stop();   // drains: commits in flight finish, trainers are told
#ifndef PARAMSHARD_SERVER_DAEMON_H_
#define PARAMSHARD_SERVER_DAEMON_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/base/kept_store.h"
#include "server/base/server_command.h"
#include "server/config/config.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// What a keeper does for a daemon.
struct Afterlife {
  // Has another server started when this one has ended. Null without a keeper.
  std::function<absl::Status(const ServerCommandChange& change)> restart = nullptr;
  // Whether another server follows, by `restart` or because somebody else has asked the keeper.
  std::function<bool()> is_followed = [] { return false; };
  // What models outlive this process in, and outlives the daemon; null: they end with it.
  KeptStore* kept = nullptr;
  // Why the last restart that was asked for was given up, and this server started instead; empty: it was not.
  std::string rollback = {};
  // Servers that the keeper has started after its first one; unset: nobody says.
  std::optional<int64_t> restarts = {};
  // The lock of the socket directory that the keeper holds, which outlives the daemon; -1: there is none.
  int socket_dir_lock = -1;
  int state_dir_lock = -1;  // likewise, of the folder that node 0 keeps decisions in
};

// Whether this is a node 0 that has a folder for them.
bool KeepsDecisions(const DaemonConfig& config);

// Thread-safe.
class Daemon {
 public:
  // Finds what Start would refuse at any time: devices that are none, a save_dir or state_dir that CheckOwnFolder
  // refuses, an address that is not this machine's, an NCCL that is needed and missing or too old. INVALID_ARGUMENT,
  // FAILED_PRECONDITION and PERMISSION_DENIED say what to change; UNIMPLEMENTED means NCCL in a build without CUDA.
  // NCCL's environment is set, and its library stays loaded.
  static absl::Status Check(const DaemonConfig& config);

  // Binds the sockets, joins the world, and serves. Health says SERVING on return. ALREADY_EXISTS another daemon holds
  // the socket directory; UNAVAILABLE a socket cannot be bound; DEADLINE_EXCEEDED the world was not complete in time;
  // what OpenDevices and Check refuse. When a device breaks, health says NOT_SERVING for good; inspection goes on.
  // `open` opens the devices. When `stop` is requested the join of the world is given up (UNAVAILABLE) and Wait
  // returns. `afterlife.restart` has the next server started after this one's end; the daemon requests its own stop
  // then. With `afterlife.kept` models go on that the server before has left there: FAILED_PRECONDITION naming one that
  // needs another server than this.
  using DeviceOpener =
      absl::FunctionRef<absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>>(absl::Span<const Device>)>;
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonConfig& config, DeviceOpener open = OpenDevices,
                                                       const std::stop_token& stop = {}, Afterlife afterlife = {});
  ~Daemon();

  // How long draining and saving may take: where saves can be made one may be under way, whatever save_on_drain says.
  static absl::Duration StopTimeout(const DaemonConfig& config);

  // Blocks until Stop or RequestStop is called.
  void Wait();
  // Makes Wait return. Callable from a handler of the daemon itself.
  void RequestStop();
  // Drains, saves and shuts down, within StopTimeout and a little more. Where the next server is started as this one
  // was, and takes the models over as they are, no save begins, and those under way end. Idempotent.
  void Stop();
  // After it: whether models have commits that were to be saved, and could not be.
  bool left_unsaved() const;

  // Returns where gRPC is served over TCP, and nothing when it is not.
  std::string tcp_address() const;
  // The same of the page of metrics.
  std::string metrics_address() const;
  // One line for people: the daemon's place in the world, and models with their commit numbers.
  std::string Summary() const;

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DAEMON_H_
