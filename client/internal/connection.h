// A client's connection to its daemon: the gRPC channel, and the credentials of its calls: on the daemon's machine the
// token of the companion socket, on another machine the certificate of the channel.
#ifndef PARAMSHARD_CLIENT_INTERNAL_CONNECTION_H_
#define PARAMSHARD_CLIENT_INTERNAL_CONNECTION_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/internal/companion.h"
#include "client/internal/remote_channel.h"
#include "client/internal/sockets.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"

namespace paramshard::internal {

// Where a daemon is: beside the client, or on another machine.
using DaemonPlace = std::variant<SocketPaths, RemoteDaemon>;

// A connection to one process of the daemon; a connection to another machine serves restarted processes too. Immutable,
// so that threads may share it; each call makes its own context.
class Connection {
 public:
  // Errors of Companion::Connect and OpenChannel, or of OpenRemoteChannel.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const DaemonPlace& place, absl::Duration timeout);

  // Returns true if the daemon has died or has closed the companion socket. The token is invalid from then on. A
  // channel to another machine connects anew by itself.
  bool IsLost() const;

  v1::TrainerService::Stub& stub() const { return *stub_; }
  v1::AdminService::Stub& admin_stub() const { return *admin_stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Unique id of this connection: ids of requests begin with it.
  const std::string& id() const { return id_; }
  void Authenticate(grpc::ClientContext& context) const;

  // Passes on the answer of a call of this connection. If the daemon exited during the call, the answer says so,
  // and what to do. UNAVAILABLE is delayed for a moment, for it may be the first sign of a dying daemon.
  absl::Status Explain(absl::string_view call, absl::Status answer) const;

 private:
  Connection(std::optional<Companion> companion, std::string id, std::shared_ptr<grpc::Channel> channel);
  // Returns true if the connection is lost within that time.
  bool IsLostWithin(absl::Duration wait) const;
  // The same after an answer that a lost connection may have caused.
  bool IsAboutToBeLost() const;

  const std::optional<Companion> companion_;  // unset: the daemon is on another machine
  const std::string id_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::TrainerService::Stub> stub_;
  const std::unique_ptr<v1::AdminService::Stub> admin_stub_;
};

// The daemon at some place, across its restarts. Thread-safe.
class Daemon {
 public:
  // Connects for the first time. `timeout` limits this and every later connection.
  static absl::StatusOr<std::unique_ptr<Daemon>> Connect(DaemonPlace place, absl::Duration timeout);

  const DaemonPlace& place() const { return place_; }

  // Returns the connection, opened anew when the last one was lost. UNAVAILABLE, with advice, while no daemon listens.
  absl::StatusOr<std::shared_ptr<Connection>> Connected();

 private:
  Daemon(DaemonPlace place, absl::Duration timeout, std::shared_ptr<Connection> connection)
      : place_(std::move(place)), timeout_(timeout), connection_(std::move(connection)) {}

  const DaemonPlace place_;
  const absl::Duration timeout_;
  absl::Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_CONNECTION_H_
