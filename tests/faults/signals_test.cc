// Real daemons that get signals, and daemons whose standard error is a pipe without a reader.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
// An address without a listener.
constexpr char kNoCluster[] = "--cluster-address=127.0.0.1:1";

class SignalsTest : public testing::Test {
 protected:
  SignalsTest() {
    int ends[2];
    PARAMSHARD_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    reader_ = wire::FileDescriptor(ends[0]);
    writer_ = wire::FileDescriptor(ends[1]);
  }

  // Starts a daemon with the pipe as its standard error. Only the daemon holds the writing end then.
  void Spawn(std::vector<std::string> flags, Surroundings surroundings = {}) {
    surroundings.standard_error = writer_.get();
    flags.push_back("--log-level=info");
    daemon_.emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), directory_.path(), flags, surroundings));
    writer_.Reset();
  }
  void Start(Surroundings surroundings = {}) {
    Spawn(DeviceFlags(1), std::move(surroundings));
    ASSERT_OK(daemon_->AwaitReady());
  }

  // Reads the log until a line has the text; all that was read.
  std::string ReadUntil(const std::string& text) {
    char c;
    while (!absl::StrContains(log_, text) && read(reader_.get(), &c, 1) == 1) log_.push_back(c);
    return log_;
  }
  void FillPipe() {
    const std::string block(4096, '.');
    ASSERT_EQ(fcntl(writer_.get(), F_SETFL, O_NONBLOCK), 0);
    while (write(writer_.get(), block.data(), block.size()) > 0) {
    }
    ASSERT_EQ(fcntl(writer_.get(), F_SETFL, 0), 0);
  }

  // A trainer's whole life: models and epochs come and go, and are logged.
  absl::Status TrainOnce() {
    return ChildProcess::Run([this](Board&) {
             return Train({.socket_dir = directory_.path(), .model = "logged", .rank = 0, .commits = 2});
           })
        .Await();
  }

  TemporaryDirectory directory_;
  wire::FileDescriptor reader_;
  wire::FileDescriptor writer_;
  std::string log_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(SignalsTest, AHangUpDrainsAsSigtermDoes) {
  Start();
  daemon_->Signal(SIGHUP);
  EXPECT_THAT(ReadUntil("stopped"), HasSubstr("draining signal=Hangup"));
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

TEST_F(SignalsTest, AHangUpIsNothingToADaemonThatNohupHasStarted) {
  Start({.ignored_signals = {SIGHUP}});
  daemon_->Signal(SIGHUP);
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(ReadUntil("stopped"), HasSubstr("draining signal=Terminated"));
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

TEST_F(SignalsTest, ALogThatNobodyReadsAnyMoreKillsNobody) {
  Start();
  EXPECT_THAT(ReadUntil("serving"), HasSubstr("serving"));
  reader_.Reset();
  EXPECT_OK(TrainOnce());
  EXPECT_OK(TrainOnce());
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

TEST_F(SignalsTest, AFullLogHoldsUpNeitherTheStartNorEpochsNorTheEnd) {
  FillPipe();
  Start();
  EXPECT_OK(TrainOnce());
  EXPECT_OK(TrainOnce());
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

// Shared memory counts as files do.
TEST_F(SignalsTest, ALimitOnFilesRefusesAModelAndKillsNobody) {
  Start({.limits = {{RLIMIT_FSIZE, 4096}}});
  const absl::Status refused = TrainOnce();
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(absl::IsUnavailable(refused)) << refused;
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

TEST_F(SignalsTest, ALogThatMayNotGrowKillsNobody) {
  const std::string path = directory_.path() + "/log";
  writer_ = wire::FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string full(4096, '.');
  ASSERT_EQ(write(writer_.get(), full.data(), full.size()), static_cast<ssize_t>(full.size()));
  Start({.limits = {{RLIMIT_FSIZE, 4096}}});
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
}

class JoiningSignalsTest : public SignalsTest, public testing::WithParamInterface<int> {};

TEST_P(JoiningSignalsTest, SigtermEndsADaemonThatWaitsForTheWorld) {
  std::vector<std::string> flags = DeviceFlags(1);
  flags.insert(flags.end(), {absl::StrCat("--node=", GetParam()), "--nodes=2", "--join-timeout=1h"});
  flags.push_back(GetParam() == 0 ? absl::StrCat("--cluster-address=127.0.0.1:", FreePort()) : kNoCluster);
  Spawn(flags);
  EXPECT_THAT(ReadUntil("joining the world"), HasSubstr("joining the world"));
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  EXPECT_THAT(ReadUntil("stopped"), HasSubstr("draining signal=Terminated"));
}

INSTANTIATE_TEST_SUITE_P(EitherNode, JoiningSignalsTest, testing::Values(0, 1));

}  // namespace
}  // namespace paramshard::test
