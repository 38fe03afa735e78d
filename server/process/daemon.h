// Daemon: sockets, services, models, and its membership in the world.
//
//   ASSIGN_OR_RETURN(auto daemon, Daemon::Start(config));
//   daemon->Wait();   // until Stop, or a Drain call
//   daemon->Stop();   // drains: commits in flight finish, trainers are told
#ifndef PARAMSHARD_SERVER_PROCESS_DAEMON_H_
#define PARAMSHARD_SERVER_PROCESS_DAEMON_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/device/compute_device.h"
#include "server/process/config.h"
#include "server/process/keeper_services.h"

namespace paramshard::server {

// Thread-safe.
class Daemon {
 public:
  // Finds settings that Start would always reject: invalid devices, a save_dir or state_dir that CheckOwnFolder
  // rejects, an address of another machine, a required NCCL that is missing or too old. INVALID_ARGUMENT,
  // FAILED_PRECONDITION and PERMISSION_DENIED say what to change; UNIMPLEMENTED means NCCL in a build without CUDA.
  // Sets NCCL's environment, and leaves its library loaded.
  static absl::Status Check(const DaemonConfig& config);

  // Binds the sockets, joins the world, and serves; on return health is SERVING. ALREADY_EXISTS another daemon holds
  // the socket directory; UNAVAILABLE a socket cannot be bound; DEADLINE_EXCEEDED the world was not complete in time;
  // errors of OpenDevices and Check. When a device breaks, health is NOT_SERVING for good; inspection still works.
  // `open` opens the devices. A request of `stop` cancels the join (UNAVAILABLE) and makes Wait return. After
  // `keeper_services.restart` has requested the next server, the daemon stops itself. With `keeper_services.kept` the
  // daemon takes over the models of the previous server: FAILED_PRECONDITION names a model that requires another
  // version.
  using DeviceOpener =
      absl::FunctionRef<absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>>(absl::Span<const Device>)>;
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonConfig& config, DeviceOpener open = OpenDevices,
                                                       const std::stop_token& stop = {},
                                                       KeeperServices keeper_services = {});
  ~Daemon();

  // Returns how long draining and saving may take; with a save_dir a save may be in progress even without
  // save_on_drain.
  static absl::Duration StopTimeout(const DaemonConfig& config);

  // Blocks until Stop or RequestStop is called.
  void Wait();
  // Makes Wait return. Callable from a handler of the daemon itself.
  void RequestStop();
  // Drains, saves and shuts down, within StopTimeout and a little more. If the next server has the same command and
  // takes over the models, no save begins, and saves in progress end. Idempotent.
  void Stop();
  // Returns true, after Stop, if models have commits that could not be saved as configured.
  bool left_unsaved() const;

  // Returns the address where gRPC is served over TCP; empty if it is not.
  std::string tcp_address() const;
  // Returns the address of the metrics page; empty if it is not served.
  std::string metrics_address() const;
  // Returns one line for people: the daemon's place in the world, and models with their commit numbers.
  std::string Summary() const;

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_DAEMON_H_
