#include "server/connection_acceptor.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/thread.h"
#include "tests/process_counts.h"
#include "tests/status_matchers.h"
#include "tests/support/daemon_process.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// A server that refuses every call, behind an acceptor.
class ConnectionAcceptorTest : public testing::Test {
 protected:
  absl::Status Start(std::vector<ListeningSocket> sockets) {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    acceptor_ = std::make_unique<ConnectionAcceptor>(builder, std::move(sockets));
    server_ = builder.BuildAndStart();
    return acceptor_->Start();
  }
  ~ConnectionAcceptorTest() override {
    acceptor_.reset();
    if (server_ != nullptr) server_->Shutdown();
  }

  static bool Answers(const std::string& target) {
    const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    return channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  }

  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/grpc.sock";
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(ConnectionAcceptorTest, BringsConnectionsOfEverySocket) {
  std::vector<ListeningSocket> sockets(1);
  ASSERT_OK_AND_ASSIGN(sockets[0], ListenOnPath(path_, 0600));
  ASSERT_OK_AND_ASSIGN(std::vector<ListeningSocket> more, ListenOnAddress("127.0.0.1:0"));
  const int port = more[0].port;
  EXPECT_GT(port, 0);
  sockets.push_back(std::move(more[0]));
  ASSERT_OK(Start(std::move(sockets)));
  EXPECT_TRUE(Answers("unix:" + path_));
  EXPECT_TRUE(Answers(absl::StrCat("127.0.0.1:", port)));
}

TEST_F(ConnectionAcceptorTest, LeavesNothingBehind) {
  const auto make_and_drop = [this] {
    std::vector<ListeningSocket> sockets(1);
    ASSERT_OK_AND_ASSIGN(sockets[0], ListenOnPath(path_, 0600));
    grpc::ServerBuilder builder;
    ConnectionAcceptor never_started(builder, std::move(sockets));
  };
  make_and_drop();  // gRPC keeps descriptors of its own from the first time on
  const int64_t descriptors = OpenDescriptors();
  make_and_drop();
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST_F(ConnectionAcceptorTest, WithoutAThreadItSaysSo) {
  std::vector<ListeningSocket> sockets(1);
  ASSERT_OK_AND_ASSIGN(sockets[0], ListenOnPath(path_, 0600));
  const ThreadShortage shortage(0);
  EXPECT_THAT(Start(std::move(sockets)), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("connections")));
}

TEST_F(ConnectionAcceptorTest, ThePathHasItsModeAndIsTakenOver) {
  for (mode_t mode : {0600, 0666}) {
    ASSERT_OK_AND_ASSIGN(const ListeningSocket listening, ListenOnPath(path_, mode));
    struct stat info {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
}

TEST_F(ConnectionAcceptorTest, WhatCannotBeListenedOnIsNamed) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ListeningSocket> taken, ListenOnAddress("127.0.0.1:0"));
  const std::string address = absl::StrCat("127.0.0.1:", taken[0].port);
  EXPECT_THAT(ListenOnAddress(address), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
  EXPECT_THAT(ListenOnPath("/nowhere/grpc.sock", 0600), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ListenOnPath("/tmp/" + std::string(200, 'x'), 0600),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("too long")));
}

}  // namespace
}  // namespace paramshard::server
