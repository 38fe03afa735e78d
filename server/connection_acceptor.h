// Takes connections for a gRPC server.
#ifndef PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_
#define PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

// A socket that listens.
struct ListeningSocket {
  wire::FileDescriptor fd;
  int port = 0;  // of TCP
};

// On a Unix socket at `path`, which is replaced, with the mode. UNAVAILABLE.
absl::StatusOr<ListeningSocket> ListenOnPath(const std::string& path, mode_t mode);
// On `HOST:PORT`, on every address of the host; port 0 takes a free one for all. At least one; UNAVAILABLE.
absl::StatusOr<std::vector<ListeningSocket>> ListenOnAddress(const std::string& address);

// gRPC's own listener stops for good when there is no descriptor for a connection. This one waits until there is one,
// and closes connections that would take the last quarter of all descriptors, which the daemon needs for memory and for
// those whom it serves already. One thread; it sleeps while nothing happens.
class ConnectionAcceptor {
 public:
  // `builder` builds the server next.
  ConnectionAcceptor(grpc::ServerBuilder& builder, std::vector<ListeningSocket> sockets);
  // Ends before the server does.
  ~ConnectionAcceptor();

  // Once the server is built. RESOURCE_EXHAUSTED.
  absl::Status Start();

 private:
  void Serve();
  // False when connections have to wait.
  bool Accept(int listener);

  const std::vector<ListeningSocket> sockets_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  wire::FileDescriptor stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CONNECTION_ACCEPTOR_H_
