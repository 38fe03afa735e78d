#include "server/process/connection_acceptor.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/grpc_deadline.h"
#include "server/base/thread.h"
#include "tests/support/daemon_process.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// Servers that refuse every call, behind an acceptor.
class ConnectionAcceptorTest : public testing::Test {
 protected:
  absl::Status Start(std::vector<ListeningSocket> sockets, ConnectionAcceptor::Options options = {},
                     std::vector<UserQuota::User> users = {geteuid(), std::nullopt}) {
    acceptor_ = std::make_unique<ConnectionAcceptor>(std::move(sockets), std::move(options));
    for (const UserQuota::User user : users) {
      grpc::ServerBuilder builder;
      builder.RegisterCallbackGenericService(services_.emplace_back(std::make_unique<Service>()).get());
      acceptor_->AddServer(user, builder, grpc::InsecureServerCredentials());
      servers_[user] = builder.BuildAndStart();
    }
    return acceptor_->Start();
  }
  ~ConnectionAcceptorTest() override {
    acceptor_.reset();
    for (const auto& [user, server] : servers_) server->Shutdown();
  }

  absl::StatusOr<std::unique_ptr<ListeningPath>> ListenOnPath() const {
    return ListeningPath::Create({.path = path_, .type = SOCK_STREAM});
  }

  static bool Answers(const std::string& target) {
    const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    return channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  }

  // On the Unix socket, for the daemon's own user and `users`.
  void StartFor(std::vector<uid_t> users, int max_connections = 8192) {
    std::vector<ListeningSocket> sockets(1);
    ASSERT_OK_AND_ASSIGN(sockets[0].path, ListenOnPath());
    std::vector<UserQuota::User> served(users.begin(), users.end());
    served.emplace_back(geteuid());
    ASSERT_OK(Start(std::move(sockets), {.max_connections = max_connections, .system = &system_}, std::move(served)));
  }
  // Connects as `user`; returns no connection if it is closed before gRPC has answered.
  wire::FileDescriptor ConnectAs(uid_t user) {
    system_.SetUser(user);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return ConnectTo(AF_UNIX, address);
  }
  template <typename Address>
  static wire::FileDescriptor ConnectTo(int family, const Address& address) {
    wire::FileDescriptor connection(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    char first = 0;
    if (read(connection.get(), &first, 1) != 1) connection.Reset();
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

  // System calls that report one user for all connections.
  class OneUser final : public SystemCalls {
   public:
    void SetUser(uid_t user) { user_ = user; }
    absl::StatusOr<PeerCredentials> Credentials(int) override { return PeerCredentials{.pid = 1, .uid = user_}; }

   private:
    std::atomic<uid_t> user_ = 0;
  };

  static constexpr uid_t kNamed = 65533;
  static constexpr uid_t kStranger = 65534;

  OneUser system_;
  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/grpc.sock";
  using Service = grpc::CallbackGenericService;
  std::vector<std::unique_ptr<Service>> services_;
  std::map<UserQuota::User, std::unique_ptr<grpc::Server>> servers_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(ConnectionAcceptorTest, BringsConnectionsOfEverySocket) {
  std::vector<ListeningSocket> sockets(1);
  ASSERT_OK_AND_ASSIGN(sockets[0].path, ListenOnPath());
  ASSERT_OK_AND_ASSIGN(std::vector<ListeningSocket> more, ListenOnAddress("127.0.0.1:0"));
  const int port = more[0].port;
  EXPECT_GT(port, 0);
  sockets.push_back(std::move(more[0]));
  ASSERT_OK(Start(std::move(sockets)));
  EXPECT_TRUE(Answers("unix:" + path_));
  EXPECT_TRUE(Answers(absl::StrCat("127.0.0.1:", port)));
}

TEST_F(ConnectionAcceptorTest, WhoIsNotNamedIsTurnedAway) {
  StartFor({kNamed});
  EXPECT_FALSE(ConnectAs(kStranger).valid());
  EXPECT_TRUE(ConnectAs(kNamed).valid());
  EXPECT_TRUE(ConnectAs(geteuid()).valid());
}

TEST_F(ConnectionAcceptorTest, EachUserHasAServer) {
  StartFor({kNamed});
  const wire::FileDescriptor named = ConnectAs(kNamed);
  const wire::FileDescriptor own = ConnectAs(geteuid());
  servers_[kNamed]->Shutdown(GrpcDeadline(absl::ZeroDuration()));
  EXPECT_TRUE(IsClosed(named));
  EXPECT_TRUE(ConnectAs(geteuid()).valid()) << "the other server";
}

TEST_F(ConnectionAcceptorTest, ANamedUserHasAShareAndTheDaemonsOwnMore) {
  StartFor({kNamed}, 4);
  std::vector<wire::FileDescriptor> connections;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(connections.emplace_back(ConnectAs(kNamed)).valid());
  EXPECT_FALSE(ConnectAs(kNamed).valid()) << "half of them";
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(connections.emplace_back(ConnectAs(geteuid())).valid());
  connections.clear();
  // Until gRPC has noticed.
  while (!ConnectAs(kNamed).valid()) {
  }
}

TEST_F(ConnectionAcceptorTest, CallersWithoutAUserShareOneShare) {
  ASSERT_OK_AND_ASSIGN(std::vector<ListeningSocket> sockets, ListenOnAddress("127.0.0.1:0"));
  const int port = sockets[0].port;
  ASSERT_OK(Start(std::move(sockets), {.max_connections = 2}));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const wire::FileDescriptor first = ConnectTo(AF_INET, address);
  EXPECT_TRUE(first.valid());
  EXPECT_FALSE(ConnectTo(AF_INET, address).valid()) << "half of two";
}

TEST_F(ConnectionAcceptorTest, LeavesNothingBehind) {
  const auto make_and_drop = [this] {
    std::vector<ListeningSocket> sockets(1);
    ASSERT_OK_AND_ASSIGN(sockets[0].path, ListenOnPath());
    grpc::ServerBuilder builder;
    ConnectionAcceptor never_started(std::move(sockets), {});
    never_started.AddServer(std::nullopt, builder, grpc::InsecureServerCredentials());
  };
  make_and_drop();  // gRPC keeps descriptors of its own from the first time on
  const int64_t descriptors = OpenDescriptors();
  make_and_drop();
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST_F(ConnectionAcceptorTest, WithoutAThreadItSaysSo) {
  std::vector<ListeningSocket> sockets(1);
  ASSERT_OK_AND_ASSIGN(sockets[0].path, ListenOnPath());
  const ThreadShortage shortage(0);
  EXPECT_THAT(Start(std::move(sockets)), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("connections")));
}

TEST_F(ConnectionAcceptorTest, ASocketThatIsRemovedIsMadeAnew) {
  StartFor({});
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(unlink(path_.c_str()), 0);
    EXPECT_TRUE(Answers("unix:" + path_));
  }
}

TEST_F(ConnectionAcceptorTest, WhatCannotBeListenedOnIsNamed) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ListeningSocket> taken, ListenOnAddress("127.0.0.1:0"));
  const std::string address = absl::StrCat("127.0.0.1:", taken[0].port);
  EXPECT_THAT(ListenOnAddress(address), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

}  // namespace
}  // namespace paramshard::server
