// Tests of TCP connections that are closed because their certificate expires, or because they show none.
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "common/tls/credentials.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "server/edge/system_calls.h"
#include "server/edge/transport.h"
#include "server/process/connection_acceptor.h"
#include "tests/server/base/manual_clock.h"
#include "tests/support/child_process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// System calls that sometimes fail to duplicate a descriptor.
class FewDescriptors final : public SystemCalls {
 public:
  // Makes the next `copies` calls fail.
  void Refuse(int copies) { refusals_ = copies; }
  int Duplicate(int fd) override {
    if (refusals_-- <= 0) return SystemCalls::Duplicate(fd);
    errno = EMFILE;
    return -1;
  }

 private:
  std::atomic<int> refusals_ = 0;
};

class ConnectionEndTest : public testing::Test {
 protected:
  ~ConnectionEndTest() override {
    acceptor_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  // `host` is an address without its port.
  void Serve(const std::string& host, ConnectionAcceptor::Options options = {});
  void ExpectThatAConnectionEnds(const std::string& host);
  tls::Files Install(const std::string& role) const {
    return test::Install(absl::StrCat(folder_.path(), "/", role),
                         authority_.Issue({absl::StrCat(test::kWorldUri, "/", role)}), authority_.cert());
  }
  // Returns a viewer's channel with a connection of its own.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto anybody = [](const std::vector<std::string>&) { return absl::OkStatus(); };
    return grpc::CreateCustomChannel(address_, tls::MakeChannelCredentials(Install("viewer"), anybody), arguments);
  }
  // Opens a silent connection over IPv4.
  wire::FileDescriptor ConnectSilently() const {
    wire::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return connection;
  }
  // Waits for the server to close the connection.
  static bool IsClosed(const wire::FileDescriptor& connection) {
    std::array<char, 256> bytes{};
    ssize_t got = 0;
    while ((got = read(connection.get(), bytes.data(), bytes.size())) > 0) {
    }
    return got == 0;
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
  FewDescriptors system_;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

void ConnectionEndTest::Serve(const std::string& host, ConnectionAcceptor::Options options) {
  ASSERT_OK_AND_ASSIGN(const Transport transport, Transport::Create({.files = Install("node/0")}, absl::Now()));
  ASSERT_OK_AND_ASSIGN(auto sockets, ListenOnAddress(host + ":0"));
  port_ = sockets.front().port;
  address_ = absl::StrCat(host, ":", port_);
  const auto connections = std::make_shared<PeerConnections>(PeerConnections::Options{.clock = clock_});
  options.system = &system_;
  options.peers = connections;
  acceptor_ = std::make_unique<ConnectionAcceptor>(std::move(sockets), std::move(options));
  grpc::ServerBuilder builder;
  builder.RegisterService(&service_);
  builder.experimental().SetInterceptorCreators(PeerConnections::Interceptors(connections));
  acceptor_->AddServer(std::nullopt, builder, transport.ForTools());
  server_ = builder.BuildAndStart();
  ASSERT_OK(acceptor_->Start());
}

void ConnectionEndTest::ExpectThatAConnectionEnds(const std::string& host) {
  ASSERT_NO_FATAL_FAILURE(Serve(host));
  const auto channel = Channel();
  EXPECT_EQ(List(channel).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ASSERT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, absl::ToChronoTime(absl::Now() + kLong)));
  EXPECT_EQ(List(channel).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ConnectionEndTest, TheSocketIsClosedAndTheChannelConnectsAnew) { ExpectThatAConnectionEnds("127.0.0.1"); }

TEST_F(ConnectionEndTest, OneThatCannotBeClosedNowIsClosedLater) {
  system_.Refuse(2);
  ExpectThatAConnectionEnds("127.0.0.1");
}

TEST_F(ConnectionEndTest, AlsoOverIpv6) {
  if (!ListenOnAddress("[::1]:0").ok()) GTEST_SKIP() << "this machine has no IPv6";
  ExpectThatAConnectionEnds("[::1]");
}

TEST_F(ConnectionEndTest, WhoSaysNothingGivesWayToTheNewest) {
  ASSERT_NO_FATAL_FAILURE(Serve("127.0.0.1", {.max_connections = 4}));  // half of them over TCP
  const auto first = Channel();
  EXPECT_EQ(List(first).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  std::vector<wire::FileDescriptor> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(ConnectSilently());
  EXPECT_TRUE(IsClosed(silent[0]));
  EXPECT_TRUE(IsClosed(silent[1]));
  const auto second = Channel();
  EXPECT_EQ(List(second).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(IsClosed(silent[2]));
  EXPECT_TRUE(IsClosed(ConnectSilently())) << "two who have made a call stay";
  EXPECT_EQ(first->GetState(false), GRPC_CHANNEL_READY);
  EXPECT_EQ(second->GetState(false), GRPC_CHANNEL_READY);
}

// Such an address names its interface.
TEST_F(ConnectionEndTest, AlsoFromALinkLocalAddress) {
  if (grpc_is_initialized() != 0) GTEST_SKIP() << "needs a process that has not used gRPC";
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
