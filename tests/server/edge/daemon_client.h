// A daemon in the test's own process, and one caller of it: a companion connection, a token, and stubs.
#ifndef PARAMSHARD_TESTS_SERVER_EDGE_DAEMON_CLIENT_H_
#define PARAMSHARD_TESTS_SERVER_EDGE_DAEMON_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/trainer.grpc.pb.h"
#include "server/process/daemon.h"
#include "tests/server/edge/companion_client.h"
#include "tests/support/daemon_process.h"

namespace paramshard::server {

absl::Status FromGrpc(const grpc::Status& status);

class DaemonClient {
 public:
  // Ends the test program when the daemon does not welcome it.
  explicit DaemonClient(const std::string& socket_dir);

  v1::TrainerService::Stub& trainer() { return *trainer_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // With the token, and a deadline that no test should reach.
  std::unique_ptr<grpc::ClientContext> Context() const;
  // With another token; none: without.
  static std::unique_ptr<grpc::ClientContext> ContextWith(const std::optional<std::string>& token);
  const std::string& token() const { return token_; }
  const CompanionClient& companion() const { return companion_; }
  void CloseCompanion() { companion_.Close(); }

  // Calls `(stub.*method)(context, request, response)`.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request) const {
    Response response;
    const grpc::Status status = (stub.*method)(Context().get(), request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  absl::StatusOr<v1::CreateModelResponse> CreateModel(const v1::ModelSpec& spec);
  // Hash over master and moments of the whole model. Planes that do not match are GoogleTest failures.
  std::string StateHash(const std::string& model);

 private:
  CompanionClient companion_;
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TrainerService::Stub> trainer_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A daemon of two ranks and a caller.
class DaemonTestBase : public testing::Test {
 protected:
  DaemonTestBase() {
    StartDaemon([](DaemonConfig&) {});
  }

  // Starts another one in place of the present one.
  void StartDaemon(const std::function<void(DaemonConfig&)>& change);
  DaemonConfig Config() const;
  const std::string& socket_dir() const { return directory_.path(); }

  const test::TemporaryDirectory directory_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<DaemonClient> client_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_EDGE_DAEMON_CLIENT_H_
