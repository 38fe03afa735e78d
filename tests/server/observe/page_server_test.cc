#include "server/observe/page_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
// Longer than any test waits.
constexpr absl::Duration kForEver = absl::Hours(1);

class PageServerTest : public testing::Test {
 protected:
  void Start(absl::Duration timeout = kForEver, std::string page = "the page\n") {
    wire::FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    ASSERT_EQ(listen(listener.get(), 64), 0);
    socklen_t size = sizeof(address_);
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &size), 0);
    PageServer::Options options;
    options.page = [this, page = std::move(page)] { return ++pages_, page; };
    options.timeout = timeout;
    options.listeners.push_back(std::move(listener));
    ASSERT_OK_AND_ASSIGN(server_, PageServer::Start(std::move(options)));
  }

  wire::FileDescriptor Connect() const {
    wire::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
    return connection;
  }

  static void Send(const wire::FileDescriptor& connection, const std::string& bytes) {
    EXPECT_EQ(send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  // Returns all bytes until the server closes the connection.
  static std::string Receive(const wire::FileDescriptor& connection) {
    std::string all;
    char bytes[4096];
    for (ssize_t size = 0; (size = recv(connection.get(), bytes, sizeof(bytes), 0)) > 0;) all.append(bytes, size);
    return all;
  }

  std::string Ask(const std::string& request) const {
    const wire::FileDescriptor connection = Connect();
    Send(connection, request);
    return Receive(connection);
  }

  sockaddr_in address_{};
  std::atomic<int> pages_ = 0;  // that were made
  std::unique_ptr<PageServer> server_;
};

TEST_F(PageServerTest, APageIsAnswered) {
  Start();
  EXPECT_EQ(Ask(kGet),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nConnection: close\r\n\r\nthe page\n");
  EXPECT_THAT(Ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), EndsWith("the page\n"));
}

TEST_F(PageServerTest, AHeadIsTheAnswerWithoutThePage) {
  Start();
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.1\r\n\r\n"), AllOf(HasSubstr("Content-Length: 9\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(PageServerTest, ALargePageArrivesWhole) {
  const std::string page(8 << 20, 'x');
  Start(kForEver, page);
  EXPECT_THAT(Ask(kGet), EndsWith("\r\n\r\n" + page));
}

TEST_F(PageServerTest, OtherMethodsAndPathsAreRefused) {
  Start();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    EXPECT_THAT(Ask(std::string(method) + " /metrics HTTP/1.1\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  }
  for (const char* path : {"/", "/metrics/", "/metric", "//metrics", "/../metrics"}) {
    EXPECT_THAT(Ask(std::string("GET ") + path + " HTTP/1.1\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("\r\nwant /metrics\n")));
  }
  EXPECT_EQ(pages_, 0);
}

TEST_F(PageServerTest, GarbageIsABadRequest) {
  Start();
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("garbage\r\n\r\n"), std::string("GET /metrics\r\n\r\n"),
        std::string("GET  /metrics HTTP/1.1\r\n\r\n"), std::string("GET /metrics HTTP/2\r\n\r\n"),
        std::string("GET metrics HTTP/1.1\r\n\r\n"), std::string("\0\xff\x16\x03\x01\r\n\r\n", 9)}) {
    EXPECT_THAT(Ask(request), StartsWith("HTTP/1.1 400 ")) << request;
  }
  EXPECT_EQ(pages_, 0);
}

TEST_F(PageServerTest, ARequestMayComeByteByByte) {
  Start();
  const wire::FileDescriptor connection = Connect();
  for (const char byte : std::string(kGet)) Send(connection, std::string(1, byte));
  EXPECT_THAT(Receive(connection), EndsWith("the page\n"));
}

TEST_F(PageServerTest, AHugeRequestIsRefusedBeforeItsEnd) {
  Start();
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(2 * PageServer::kMostRequestBytes, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(PageServer::kMostRequestBytes, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nX: " + std::string(PageServer::kMostRequestBytes / 2, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
}

TEST_F(PageServerTest, OfSeveralRequestsOnAConnectionTheFirstIsAnswered) {
  Start();
  EXPECT_EQ(Ask(std::string(kGet) + kGet + kGet), Ask(kGet));
  EXPECT_EQ(pages_, 2);
}

TEST_F(PageServerTest, SilentConnectionsKeepNobodyWaiting) {
  Start();
  std::vector<wire::FileDescriptor> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(Connect());
    Send(silent.back(), "GET /met");
  }
  EXPECT_THAT(Ask(kGet), EndsWith("the page\n"));
  // The oldest connections were closed.
  EXPECT_THAT(Receive(silent.front()), IsEmpty());
}

TEST_F(PageServerTest, ConnectionsWhosePageIsNotReadKeepNobodyWaiting) {
  Start(kForEver, std::string(8 << 20, 'x'));
  std::vector<wire::FileDescriptor> unread;
  for (int i = 0; i < 20; ++i) {
    unread.push_back(Connect());
    Send(unread.back(), kGet);
  }
  EXPECT_THAT(Ask(kGet), EndsWith("xxx"));
}

TEST_F(PageServerTest, ARequestThatTakesTooLongEndsWithoutAnAnswer) {
  Start(absl::Milliseconds(20));
  const wire::FileDescriptor connection = Connect();
  Send(connection, "GET /met");
  EXPECT_THAT(Receive(connection), IsEmpty());
  EXPECT_THAT(Receive(Connect()), IsEmpty());
}

TEST_F(PageServerTest, APageThatIsNotReadInTimeIsCutOff) {
  const std::string page(64 << 20, 'x');  // more than sockets hold
  Start(absl::Milliseconds(20), page);
  const wire::FileDescriptor connection = Connect();
  Send(connection, kGet);
  // It has timed out when the second connection, which began later, ends.
  EXPECT_THAT(Receive(Connect()), IsEmpty());
  EXPECT_LT(Receive(connection).size(), page.size());
}

TEST_F(PageServerTest, ClientsThatGoAwayLeaveNothing) {
  Start(kForEver, std::string(8 << 20, 'x'));
  for (const std::string& request : {std::string(), std::string("GET /"), std::string(kGet)}) {
    const wire::FileDescriptor connection = Connect();
    if (!request.empty()) Send(connection, request);
  }
  EXPECT_THAT(Ask(kGet), EndsWith("xxx"));
}

TEST_F(PageServerTest, TheEndClosesConnections) {
  Start();
  const wire::FileDescriptor connection = Connect();
  Send(connection, "GET /met");
  server_.reset();
  char byte = 0;
  EXPECT_THAT(recv(connection.get(), &byte, 1, 0), AnyOf(0, -1));
}

}  // namespace
}  // namespace paramshard::server
