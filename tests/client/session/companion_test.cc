#include "client/internal/companion.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A socket whose queue has one place, and that never accepts.
wire::FileDescriptor ListenWithoutAccepting(const std::string& path) {
  wire::FileDescriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener.get(), 0), 0);
  return listener;
}

TEST(CompanionTest, ADaemonThatStandsStillKeepsNobodyLongerThanTheTimeout) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/handoff.sock";
  const wire::FileDescriptor listener = ListenWithoutAccepting(path);
  EXPECT_THAT(Companion::Connect(path, absl::Milliseconds(50)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out after 50ms")));
  EXPECT_THAT(Companion::Connect(path, absl::Milliseconds(50)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out after 50ms")));
}

TEST(CompanionTest, WithoutFreeDescriptorsNothingIsTried) {
  const test::TemporaryDirectory directory;
  const DescriptorLimit limit(DescriptorLimit::NoneLeft());
  EXPECT_THAT(Companion::Connect(directory.path() + "/handoff.sock", absl::Seconds(1)).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("want 16 free file descriptors, got 0"), HasSubstr("ulimit -n"))));
}

TEST(CompanionTest, AFewFreeDescriptorsAreTooFew) {
  const test::TemporaryDirectory directory;
  const DescriptorLimit limit(DescriptorLimit::NoneLeft() + 8);
  EXPECT_THAT(Companion::Connect(directory.path() + "/handoff.sock", absl::Seconds(1)).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("want 16 free file descriptors, got ")));
}

}  // namespace
}  // namespace paramshard::internal
