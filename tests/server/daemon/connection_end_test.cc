// Connections over TCP that end because their certificates do.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "proto/tls/credentials.h"
#include "server/connection_acceptor.h"
#include "server/transport/transport.h"
#include "tests/server/store/manual_clock.h"
#include "tests/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

class ConnectionEndTest : public testing::TestWithParam<std::string> {
 protected:
  tls::Files Install(const std::string& role) const {
    return test::Install(absl::StrCat(folder_.path(), "/", role),
                         authority_.Issue({absl::StrCat(test::kWorldUri, "/", role)}), authority_.cert());
  }
  static grpc::Status List(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
    context.set_wait_for_ready(true);
    v1::ListModelsResponse response;
    return v1::AdminService::NewStub(channel)->ListModels(&context, {}, &response);
  }

  const test::TestAuthority authority_;
  const test::TemporaryDirectory folder_;
  ManualClock clock_;
  v1::AdminService::Service service_;  // UNIMPLEMENTED is an answer
};

TEST_P(ConnectionEndTest, TheSocketIsClosedAndTheChannelConnectsAnew) {
  ASSERT_OK_AND_ASSIGN(const Transport transport, Transport::Create({.files = Install("node/0")}, absl::Now()));
  auto sockets = ListenOnAddress(GetParam() + ":0");
  if (!sockets.ok()) GTEST_SKIP() << sockets.status();
  const std::string address = absl::StrCat(GetParam(), ":", sockets->front().port);
  const auto connections = std::make_shared<PeerConnections>(PeerConnections::Options{.clock = clock_});
  ConnectionAcceptor acceptor(*std::move(sockets), {.peers = connections});
  grpc::ServerBuilder builder;
  builder.RegisterService(&service_);
  builder.experimental().SetInterceptorCreators(PeerConnections::Interceptors(connections));
  acceptor.AddServer(std::nullopt, builder, transport.ForTools());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_OK(acceptor.Start());

  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(
      address,
      tls::MakeChannelCredentials(Install("viewer"), [](const std::vector<std::string>&) { return absl::OkStatus(); }),
      arguments);
  EXPECT_EQ(List(channel).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ASSERT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + kLong)));
  EXPECT_EQ(List(channel).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  server->Shutdown(std::chrono::system_clock::now());
}

INSTANTIATE_TEST_SUITE_P(Addresses, ConnectionEndTest, testing::Values("127.0.0.1", "[::1]"));

}  // namespace
}  // namespace paramshard::server
