// Connections over TCP that end because their certificates do.
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

class ConnectionEndTest : public testing::Test {
 protected:
  // The address of a host without its port.
  void ExpectThatAConnectionEnds(const std::string& host);
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

void ConnectionEndTest::ExpectThatAConnectionEnds(const std::string& host) {
  ASSERT_OK_AND_ASSIGN(const Transport transport, Transport::Create({.files = Install("node/0")}, absl::Now()));
  ASSERT_OK_AND_ASSIGN(auto sockets, ListenOnAddress(host + ":0"));
  const std::string address = absl::StrCat(host, ":", sockets.front().port);
  const auto connections = std::make_shared<PeerConnections>(PeerConnections::Options{.clock = clock_});
  ConnectionAcceptor acceptor(std::move(sockets), {.peers = connections});
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

TEST_F(ConnectionEndTest, TheSocketIsClosedAndTheChannelConnectsAnew) { ExpectThatAConnectionEnds("127.0.0.1"); }

TEST_F(ConnectionEndTest, AlsoOverIpv6) {
  if (!ListenOnAddress("[::1]:0").ok()) GTEST_SKIP() << "this machine has no IPv6";
  ExpectThatAConnectionEnds("[::1]");
}

// Such an address says which interface it is of.
TEST_F(ConnectionEndTest, AlsoFromALinkLocalAddress) {
  if (grpc_is_initialized() != 0) GTEST_SKIP() << "a process that has not used gRPC expected: run this test alone";
  test::ChildProcess child = test::ChildProcess::Run([this](test::Board&) -> absl::Status {
    constexpr char kAddAddress[] = "ip link set lo up && ip -6 addr add fe80::1/64 dev lo nodad";
    if (unshare(CLONE_NEWNET) != 0 || !test::OutputOf(kAddAddress).ok()) {
      return absl::FailedPreconditionError("a network namespace with IPv6 expected");
    }
    ExpectThatAConnectionEnds("[fe80::1%lo]");
    return HasFailure() ? absl::InternalError("see above") : absl::OkStatus();
  });
  const absl::Status status = child.Await();
  if (absl::IsFailedPrecondition(status)) GTEST_SKIP() << status;
  EXPECT_OK(status);
}

}  // namespace
}  // namespace paramshard::server
