#include "server/edge/peer_process.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/kill_process.h"
#include "tests/support/child_process.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

TEST(PeerProcessTest, TheKernelNamesThePeer) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const wire::FileDescriptor near(sockets[0]);
  const wire::FileDescriptor far(sockets[1]);
  ASSERT_OK_AND_ASSIGN(const PeerCredentials peer, CredentialsOf(near.get()));
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, geteuid());
}

TEST(PeerProcessTest, WhatIsNoSocketHasNoCredentials) {
  const wire::FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  EXPECT_THAT(CredentialsOf(event.get()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CredentialsOf(-1), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(PeerProcessTest, APidfdIsOfItsProcessOnly) {
  ASSERT_OK_AND_ASSIGN(const wire::FileDescriptor own, OwnPidfd());
  EXPECT_OK(CheckPidfd(own.get(), getpid()));
  EXPECT_THAT(CheckPidfd(own.get(), getppid()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got one of process")));
}

TEST(PeerProcessTest, OtherDescriptorsAreNoPidfds) {
  const wire::FileDescriptor event(eventfd(0, EFD_CLOEXEC));
  EXPECT_THAT(CheckPidfd(event.get(), getpid()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another kind")));
  EXPECT_THAT(CheckPidfd(-1, getpid()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PeerProcessTest, WithoutADescriptorNothingIsSaidOfThePidfd) {
  ASSERT_OK_AND_ASSIGN(const wire::FileDescriptor own, OwnPidfd());
  const DescriptorLimit limit(DescriptorLimit::NoneLeft());
  EXPECT_THAT(CheckPidfd(own.get(), getpid()), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(OwnPidfd(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PeerProcessTest, AKilledProcessIsGoneAndMayBeKilledAgain) {
  test::ChildProcess child = test::ChildProcess::Run([](test::Board&) {
    pause();
    return absl::OkStatus();
  });
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  EXPECT_OK(CheckPidfd(pidfd.get(), child.pid()));
  EXPECT_OK(KillProcess(pidfd.get()));
  EXPECT_THAT(child.Await(), StatusIs(absl::StatusCode::kUnknown));
  EXPECT_OK(KillProcess(pidfd.get()));
}

}  // namespace
}  // namespace paramshard::server
