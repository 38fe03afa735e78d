// A client's connection to its daemon: the gRPC channel, and what authenticates calls on it. Beside the daemon that is
// the token of the companion socket, on another machine the certificate of the channel.
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

// A connection to one life of the daemon; that to another machine to all of them. It is immutable, so that threads may
// share it; a call makes a context of its
// own.
class Connection {
 public:
  // Errors of Companion::Connect and OpenChannel, or of OpenRemoteChannel.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const DaemonPlace& place, absl::Duration timeout);

  // Whether the daemon has died or has closed the companion socket. The token is worth nothing from then on. A channel
  // to another machine connects anew by itself.
  bool IsLost() const;

  v1::TrainerService::Stub& stub() const { return *stub_; }
  v1::AdminService::Stub& admin_stub() const { return *admin_stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Tells this connection from all others: ids of requests begin with it.
  const std::string& id() const { return id_; }
  void Authenticate(grpc::ClientContext& context) const;

  // Passes on what a call of this connection has answered. Where the daemon went away under the call, the answer says
  // so, and what to do. UNAVAILABLE comes a moment later than it was answered, for that may be the first sign.
  absl::Status Explain(absl::string_view call, absl::Status answer) const;

 private:
  Connection(std::optional<Companion> companion, std::string id, std::shared_ptr<grpc::Channel> channel);
  // Whether it is lost within that time.
  bool IsLostWithin(absl::Duration wait) const;
  // The same after an answer that a lost connection may have made.
  bool IsAboutToBeLost() const;

  const std::optional<Companion> companion_;  // unset: the daemon is on another machine
  const std::string id_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::TrainerService::Stub> stub_;
  const std::unique_ptr<v1::AdminService::Stub> admin_stub_;
};

// The daemon at some place, through all its lives. Thread-safe.
class Daemon {
 public:
  // Connects for the first time. `timeout` bounds this and every later connection.
  static absl::StatusOr<std::unique_ptr<Daemon>> Connect(DaemonPlace place, absl::Duration timeout);

  const DaemonPlace& place() const { return place_; }

  // The connection, opened anew when the last one was lost. UNAVAILABLE saying what to do while nobody listens.
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
