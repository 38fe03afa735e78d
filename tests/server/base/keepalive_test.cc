// Peers that fall silent after their first HTTP/2 frames: both ends break such a connection, even without calls.
#include "server/base/keepalive.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/shared_memory/file_descriptor.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.grpc.pb.h"

namespace paramshard::server {
namespace {

// Longer than a working keepalive takes: pings are sent every 10 s and time out after 5 s.
constexpr std::chrono::minutes kTimeout{2};
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// A frame without bytes: kind 4, no flags, stream 0.
constexpr absl::string_view kEmptySettings("\0\0\0\4\0\0\0\0\0", 9);

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

wire::FileDescriptor NewSocket() { return wire::FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool Say(int fd, absl::string_view bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Within the timeout.
bool IsReadable(int fd) {
  pollfd readable = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kTimeout).count())) > 0;
}

// Reads and answers nothing until the other end breaks the connection. Returns false if it does not.
bool IsBroken(int fd) {
  while (IsReadable(fd)) {
    char bytes[4096];
    if (recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
  }
  return false;
}

TEST(Keepalive, AServerBreaksTheConnectionOfAPeerThatAnswersNoPing) {
  v1::AdminService::Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  SetKeepalive(builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  const wire::FileDescriptor peer = NewSocket();
  const sockaddr_in address = Loopback(port);
  ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_TRUE(Say(peer.get(), absl::StrCat(kPreface, kEmptySettings)));
  EXPECT_TRUE(IsBroken(peer.get()));
}

TEST(Keepalive, AChannelBreaksTheConnectionOfAServerThatAnswersNoPing) {
  const wire::FileDescriptor listener = NewSocket();
  sockaddr_in address = Loopback(0);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);

  grpc::ChannelArguments arguments;
  SetKeepalive(arguments);
  const std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", ntohs(address.sin_port)), grpc::InsecureChannelCredentials(), arguments);
  channel->GetState(/*try_to_connect=*/true);
  ASSERT_TRUE(IsReadable(listener.get()));
  const wire::FileDescriptor peer(accept(listener.get(), nullptr, nullptr));
  ASSERT_GE(peer.get(), 0);
  ASSERT_TRUE(Say(peer.get(), kEmptySettings));
  ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + kTimeout));
  EXPECT_TRUE(IsBroken(peer.get()));
}

}  // namespace
}  // namespace paramshard::server
