#include "server/process/service_notifier.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

// The manager's end: messages in the order of arrival.
class ServiceManager {
 public:
  explicit ServiceManager(const std::string& address) : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un own{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(own.sun_path, address.data(), address.size());
    if (address.front() == '@') own.sun_path[0] = '\0';
    const socklen_t size = offsetof(sockaddr_un, sun_path) + address.size();
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), size), 0) << std::strerror(errno);
  }

  // Waits for the next message; the test's own timeout is the bound.
  std::string Next() const {
    char text[4096];
    const ssize_t size = recv(socket_.get(), text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, size);
  }

  bool HasHeardAll() const {
    char text[1];
    return recv(socket_.get(), text, sizeof(text), MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  }

 private:
  const wire::FileDescriptor socket_;
};

class ServiceNotifierTest : public testing::Test {
 protected:
  const test::TemporaryDirectory directory_;
  const std::string address_ = absl::StrCat(directory_.path(), "/notify");
  const ServiceManager manager_{address_};
};

TEST_F(ServiceNotifierTest, ReadinessAndEndCarryAStatus) {
  ServiceNotifier notifier(address_.c_str());
  notifier.Ready([] { return "node 0 of 1"; });
  notifier.Stopping("draining");
  EXPECT_EQ(manager_.Next(), "READY=1\nSTATUS=node 0 of 1");
  EXPECT_EQ(manager_.Next(), "STOPPING=1\nSTATUS=draining");
}

TEST_F(ServiceNotifierTest, AServerThatAnotherOneFollowsDoesNotStop) {
  ServiceNotifier notifier(address_.c_str());
  notifier.Ready([] { return "node 0 of 1"; });
  notifier.Restarting("draining");
  EXPECT_EQ(manager_.Next(), "READY=1\nSTATUS=node 0 of 1");
  EXPECT_EQ(manager_.Next(), "STATUS=draining");
}

TEST_F(ServiceNotifierTest, AStatusThatChangesIsSaidAgain) {
  std::atomic<int> calls = 0;
  ServiceNotifier notifier(address_.c_str(), absl::Milliseconds(1));
  notifier.Ready([&calls] { return absl::StrCat("commit ", calls++ / 3); });
  EXPECT_EQ(manager_.Next(), "READY=1\nSTATUS=commit 0");
  EXPECT_EQ(manager_.Next(), "STATUS=commit 1");
  EXPECT_EQ(manager_.Next(), "STATUS=commit 2");
}

TEST_F(ServiceNotifierTest, NothingIsDescribedAfterTheEnd) {
  ServiceNotifier notifier(address_.c_str(), absl::Milliseconds(1));
  {
    int calls = 0;
    notifier.Ready([&calls] { return absl::StrCat(calls++); });
    notifier.Stopping("draining");
  }
  std::string last;
  while (!manager_.HasHeardAll()) last = manager_.Next();
  EXPECT_EQ(last, "STOPPING=1\nSTATUS=draining");
}

TEST_F(ServiceNotifierTest, AStatusIsOneLine) {
  const ServiceNotifier notifier(address_.c_str());
  notifier.Status("models: a\nMAINPID=1");
  EXPECT_EQ(manager_.Next(), "STATUS=models: a MAINPID=1");
}

TEST(ServiceNotifierAddressTest, AbstractNamesBeginWithAnAt) {
  const std::string address = absl::StrCat("@paramshard-notify-", getpid());
  const ServiceManager manager(address);
  const ServiceNotifier notifier(address.c_str());
  notifier.Status("serving");
  EXPECT_EQ(manager.Next(), "STATUS=serving");
}

TEST(ServiceNotifierAddressTest, WithoutAManagerNothingIsDescribed) {
  for (const char* address : {static_cast<const char*>(nullptr), ""}) {
    ServiceNotifier notifier(address);
    notifier.Ready([]() -> std::string {
      ADD_FAILURE() << "a status was asked for";
      return "";
    });
    notifier.Stopping("draining");
  }
}

TEST(ServiceNotifierAddressTest, AManagerThatIsNotThereIsNoError) {
  const test::TemporaryDirectory directory;
  ServiceNotifier(absl::StrCat(directory.path(), "/nobody").c_str()).Status("serving");
  ServiceNotifier(std::string(1000, 'x').c_str()).Status("serving");
}

}  // namespace
}  // namespace paramshard::server
