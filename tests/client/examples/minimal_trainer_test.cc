#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/demo/child_process.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kEndless = 1'000'000'000;

// A daemon of two ranks with its own trainers.
class World {
 public:
  absl::Status Start() {
    absl::StatusOr<test::DaemonProcess> daemon =
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets_.path(), test::DeviceFlags(2));
    if (daemon.ok()) daemon_.emplace(*std::move(daemon));
    return daemon.status();
  }

  absl::StatusOr<ChildProcess> StartTrainer(const std::string& rank, const std::string& steps) const {
    return ChildProcess::Start({.name = absl::StrCat("rank ", rank),
                                .arguments = {test::Program(MINIMAL_TRAINER), rank, steps, sockets_.path()},
                                .output_file = absl::StrCat(output_.path(), "/rank", rank)});
  }
  absl::StatusOr<ChildProcess> StartTrainer(int rank, int64_t steps) const {
    return StartTrainer(absl::StrCat(rank), absl::StrCat(steps));
  }

  void Train(int64_t steps) const {
    ASSERT_OK_AND_ASSIGN(ChildProcess first, StartTrainer(0, steps));
    ASSERT_OK_AND_ASSIGN(ChildProcess second, StartTrainer(1, steps));
    EXPECT_OK(first.WaitForSuccess(kTimeout));
    EXPECT_OK(second.WaitForSuccess(kTimeout));
  }

  std::string Output(int rank) const {
    std::ifstream in(OutputFile(rank));
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

  // Waits until the trainer has made a commit since it opened the model for the `opened`th time.
  void AwaitCommit(int rank, int opened) const {
    const absl::Time deadline = absl::Now() + kTimeout;
    const wire::FileDescriptor writes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ASSERT_GE(inotify_add_watch(writes.get(), output_.path().c_str(), IN_MODIFY), 0);
    while (true) {
      const std::string output = Output(rank);
      // A piece follows each "at commit".
      const std::vector<std::string> pieces = absl::StrSplit(output, "at commit ");
      if (static_cast<int>(pieces.size()) > opened && absl::StrContains(pieces[opened], "\ncommit ")) return;
      pollfd written{.fd = writes.get(), .events = POLLIN, .revents = 0};
      const int64_t left = std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0);
      ASSERT_EQ(poll(&written, 1, static_cast<int>(left)), 1) << output;
      char events[4096];
      while (read(writes.get(), events, sizeof(events)) > 0) {
      }
    }
  }

  struct State {
    std::string commit_number;
    std::string hash;  // of masters and moments
    bool operator==(const State&) const = default;
  };
  State ReadState() const {
    const absl::StatusOr<std::string> text = RunAndRead(
        "verify", {test::Program(PARAMSHARDCTL), "--socket-dir=" + sockets_.path(), "-o", "json", "verify", "minimal"},
        output_.path() + "/verify", kTimeout);
    EXPECT_OK(text.status());
    const auto summary = nlohmann::json::parse(text.value_or("{}")).value("summary", nlohmann::json::object());
    return {summary.value("commitNumber", ""), summary.value("stateHash", "")};
  }

 private:
  std::string OutputFile(int rank) const { return absl::StrCat(output_.path(), "/rank", rank); }

  const test::TemporaryDirectory sockets_, output_;
  std::optional<test::DaemonProcess> daemon_;
};

TEST(MinimalTrainerTest, FindsTheWeights) {
  World world;
  ASSERT_OK(world.Start());
  world.Train(1000);
  for (const int rank : {0, 1}) {
    const std::string output = world.Output(rank);
    EXPECT_THAT(output, HasSubstr("at commit 0\n"));
    double loss = 1;
    const std::string last = output.substr(output.rfind("loss ") + 5);
    ASSERT_TRUE(absl::SimpleAtod(absl::StripAsciiWhitespace(last), &loss)) << output;
    EXPECT_LT(loss, 1e-4);
  }
}

TEST(MinimalTrainerTest, EndsInTheSameStateWhenTrainersAreKilled) {
  World world;
  ASSERT_OK(world.Start());
  {
    ASSERT_OK_AND_ASSIGN(ChildProcess survivor, world.StartTrainer(0, kEndless));
    ASSERT_OK_AND_ASSIGN(ChildProcess victim, world.StartTrainer(1, kEndless));
    ASSERT_NO_FATAL_FAILURE(world.AwaitCommit(0, 1));
    victim.Signal(SIGKILL);
    ASSERT_OK_AND_ASSIGN(const ExitState exit, victim.Wait(kTimeout));
    EXPECT_EQ(exit.signal, SIGKILL);
    ASSERT_OK_AND_ASSIGN(victim, world.StartTrainer(1, kEndless));
    ASSERT_NO_FATAL_FAILURE(world.AwaitCommit(0, 2)) << "the survivor opens the model again";
  }  // kills both
  EXPECT_THAT(world.Output(0), AllOf(HasSubstr("ABORTED: "), HasSubstr("rank 1: process ")));
  int64_t commits = 0;
  ASSERT_TRUE(absl::SimpleAtoi(world.ReadState().commit_number, &commits));
  ASSERT_GE(commits, 200);
  world.Train(commits + 20);

  World uninterrupted;
  ASSERT_OK(uninterrupted.Start());
  uninterrupted.Train(commits + 20);
  EXPECT_EQ(uninterrupted.ReadState().hash.size(), 32U) << "a missing hash would equal another missing one";
  EXPECT_EQ(world.ReadState(), uninterrupted.ReadState());
}

TEST(MinimalTrainerTest, RefusesArgumentsThatAreNoNumbers) {
  World world;
  ASSERT_OK(world.Start());
  for (const auto& [rank, steps] : {std::pair("0", "x"), std::pair("0x", "10"), std::pair("", "10")}) {
    ASSERT_OK_AND_ASSIGN(ChildProcess trainer, world.StartTrainer(rank, steps));
    ASSERT_OK_AND_ASSIGN(const ExitState exit, trainer.Wait(kTimeout));
    EXPECT_EQ(exit.code, 2) << rank << " " << steps;
  }
}

TEST(MinimalTrainerTest, SaysThatItWaitsForAllRanks) {
  World world;
  ASSERT_OK(world.Start());
  world.Train(1);
  EXPECT_THAT(world.Output(0), HasSubstr("opening model minimal: waits up to 10m for all ranks\n"));
}

TEST(MinimalTrainerTest, SaysWhereItLookedForADaemon) {
  World world;
  ASSERT_OK_AND_ASSIGN(ChildProcess trainer, world.StartTrainer(0, 10));
  ASSERT_OK_AND_ASSIGN(const ExitState exit, trainer.Wait(kTimeout));
  EXPECT_EQ(exit.code, 1);
  EXPECT_THAT(world.Output(0), HasSubstr("UNAVAILABLE: connect: "));
}

}  // namespace
}  // namespace paramshard::demo
