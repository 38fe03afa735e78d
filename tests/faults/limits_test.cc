// Real daemons that may have few descriptors, and crowds that take them.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/companion_packet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/environment.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

class DescriptorsTest : public testing::Test {
 protected:
  // GPUs would take descriptors of their own.
  void StartDaemon(int64_t descriptors) {
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), directory_.path(), {"--device=cpu:0"}, absl::Seconds(60),
                                       {.limits = {{RLIMIT_NOFILE, descriptors}}});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  // A process that holds `count` connections to one of the daemon's sockets; each may say a packet.
  ChildProcess RunCrowd(const std::string& name, int type, int count, bool with_hello) {
    ChildProcess crowd = ChildProcess::Run([&, this](Board& board) -> absl::Status {
      const DescriptorLimit enough(count + 100);
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      absl::StrCat(directory_.path(), "/", name).copy(address.sun_path, sizeof(address.sun_path) - 1);
      const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
      std::vector<wire::FileDescriptor> connections;
      for (int i = 0; i < count; ++i) {
        connections.emplace_back(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        const int fd = connections.back().get();
        if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) break;
        if (!with_hello) continue;
        (void)wire::SendCompanionPacket(fd, wire::CompanionBytes(wire::CompanionHello{}), {pidfd.get()});
        (void)wire::ReceiveCompanionPacket(fd, absl::Seconds(30));
      }
      Reach(board, 0, 1);
      pause();
      return absl::OkStatus();
    });
    EXPECT_TRUE(crowd.AwaitNumber(0, 1));
    return crowd;
  }

  // Attaches, trains and leaves; the next one can do so only when the daemon has noticed that.
  absl::Status TrainOnce() {
    return ChildProcess::Run([this](Board&) {
             return Train({.socket_dir = directory_.path(), .model = "few", .rank = 0, .commits = 2});
           })
        .Await();
  }
  std::string Version() const {
    return absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " --timeout=20s version");
  }
  int64_t Descriptors() const { return CountEntries(absl::StrCat("/proc/", daemon_->pid(), "/fd")); }

  TemporaryDirectory directory_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(DescriptorsTest, ASilentCrowdAtTheCompanionSocketKeepsNobodyOut) {
  StartDaemon(64);
  const ChildProcess crowd = RunCrowd("handoff.sock", SOCK_SEQPACKET, 200, false);
  EXPECT_OK(TrainOnce());
  EXPECT_OK(TrainOnce());
}

TEST_F(DescriptorsTest, ACrowdOfClientsEndsAtTheLimitAndIsForgottenWithItsProcess) {
  StartDaemon(1024);
  {
    const ChildProcess crowd = RunCrowd("handoff.sock", SOCK_SEQPACKET, 600, true);
    EXPECT_THAT(OutputOf(Version() + " 2>&1").status(),
                StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("RESOURCE_EXHAUSTED")));
    EXPECT_GT(Descriptors(), 500);
    EXPECT_LT(Descriptors(), 600) << "half of all are left";
  }
  EXPECT_OK(TrainOnce());
}

// With gRPC's own listener this was the end: it stops for good when it finds no descriptor.
TEST_F(DescriptorsTest, ACrowdAtGrpcsSocketIsSurvived) {
  StartDaemon(64);
  {
    const ChildProcess crowd = RunCrowd("grpc.sock", SOCK_STREAM, 300, false);
    // Until the daemon has taken as many as it takes. The test ends by its timeout where it never does.
    while (Descriptors() < 47) std::this_thread::yield();
  }
  EXPECT_OK(TrainOnce());
  EXPECT_OK(OutputOf(Version()));
}

}  // namespace
}  // namespace paramshard::test
