// Models outlive the server: it is killed at every point of a step, and the training goes on bit for bit.

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kKilledCommit = 4;
// Ten more steps show that everything that later steps depend on is unchanged.
constexpr int64_t kCommits = kKilledCommit + 10;
// Numbers of a board.
constexpr int kKilled = 0;    // a KillState
constexpr int kAnswered = 1;  // the last commit that rank 0 had an answer for before that
constexpr int kResumed = 2;   // the first that it began after that

enum KillState : uint32_t { kNotYet, kBegun, kGone };

// Sends a signal, and waits until the process is gone: sanitizers take a second or more to handle SIGSEGV, in which the
// other threads of a server would finish the training.
bool EndWith(int signal, pid_t process) {
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd.valid() || kill(process, signal) != 0) return false;
  pollfd gone{pidfd.get(), POLLIN, 0};
  return poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))) == 1;
}

// (ranks, Point, signal)
class KeptModelsTest : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  static int ranks() { return std::min(std::get<0>(GetParam()), DevicesUpTo(2)); }
  static Point point() { return static_cast<Point>(std::get<1>(GetParam())); }
  static int signal() { return std::get<2>(GetParam()); }

  void Start(std::vector<std::string> flags) {
    if (daemon_.has_value()) {
      daemon_->Signal(SIGTERM);
      EXPECT_OK(daemon_->AwaitExit(kTimeout).status());
    }
    for (const std::string& device : DeviceFlags(ranks())) flags.push_back(device);
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), directory_.path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }
  absl::StatusOr<nlohmann::json> Ctl(const std::string& words) const {
    const absl::StatusOr<std::string> output =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " -o json ", words));
    if (!output.ok()) return output.status();
    return nlohmann::json::parse(*output);
  }
  pid_t ServerPid() const {
    const absl::StatusOr<nlohmann::json> version = Ctl("version");
    return version.ok() ? static_cast<pid_t>(std::stol((*version)["pid"].get<std::string>())) : -1;
  }
  std::string StateHash() const {
    const absl::StatusOr<nlohmann::json> verified = Ctl("verify kept");
    EXPECT_OK(verified.status());
    return verified.ok() ? (*verified)["summary"]["stateHash"].get<std::string>() : "";
  }
  Training TrainingOf(int rank) const {
    return {.socket_dir = directory_.path(),
            .model = "kept",
            .rank = rank,
            .pushes_once = pushes_once_,
            .commits = kCommits,
            .differs = ranks() > 1};
  }
  // All ranks, to the end, in processes of their own.
  void TrainAll(const std::function<void(Training&, Board&)>& prepare) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks(); ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank, &prepare](Board& board) {
        Training training = TrainingOf(rank);
        if (rank == 0) prepare(training, board);
        return TrainOn(training);
      }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
    numbers_ = {trainers[0].board().numbers[kKilled], trainers[0].board().numbers[kAnswered],
                trainers[0].board().numbers[kResumed]};
  }
  // Comes again for as long as servers end under it.
  static absl::Status TrainOn(const Training& training) {
    absl::Status status = absl::UnavailableError("not yet");
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::IsUnavailable(status) && absl::Now() < deadline;) {
      status = Train(training);
    }
    return status;
  }

  // The server is killed in a training, which ends in the bytes of one that is not, whose pushes may add up.
  void ExpectGoesOn(bool pushes_once);

  const TemporaryDirectory directory_;
  std::optional<DaemonProcess> daemon_;
  std::vector<int64_t> numbers_;
  bool pushes_once_ = false;
};

void KeptModelsTest::ExpectGoesOn(bool pushes_once) {
  Start({});
  TrainAll([](Training&, Board&) {});
  const std::string expected = StateHash();

  Start({"--keeper=on"});
  pushes_once_ = pushes_once;
  const pid_t server = ServerPid();
  ASSERT_NE(server, daemon_->pid());
  TrainAll([&](Training& training, Board& board) {
    training.at = [&](Point at, int64_t commit) {
      const bool killed = board.numbers[kKilled] != kNotYet;
      if (at == Point::kCommitted && !killed) board.numbers[kAnswered] = commit;
      if (at == Point::kStart && killed && board.numbers[kResumed] == 0) board.numbers[kResumed] = commit;
      if (commit != kKilledCommit || at != point() || killed) return;
      board.numbers[kKilled] = kBegun;
      if (EndWith(signal(), server)) board.numbers[kKilled] = kGone;
    };
  });
  EXPECT_EQ(numbers_[kKilled], int64_t{kGone});
  EXPECT_GE(numbers_[kAnswered], kKilledCommit - 1);
  EXPECT_GT(numbers_[kResumed], numbers_[kAnswered]) << "no answered commit is made twice";
  EXPECT_NE(ServerPid(), server);
  EXPECT_EQ(StateHash(), expected);
}

TEST_P(KeptModelsTest, ATrainingGoesOnFromTheCommitThatTheKilledServerWasAt) { ExpectGoesOn(/*pushes_once=*/false); }

class PushedOnceTest : public KeptModelsTest {};

TEST_P(PushedOnceTest, ATrainingGoesOnFromTheCommitThatTheKilledServerWasAt) { ExpectGoesOn(/*pushes_once=*/true); }

std::string NameOf(const testing::TestParamInfo<std::tuple<int, int, int>>& info) {
  return absl::StrCat("Ranks", std::get<0>(info.param), "Point", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(, KeptModelsTest,
                         testing::Combine(testing::Values(1, 2), testing::Range(0, kPointCount),
                                          testing::Values(SIGKILL)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(, PushedOnceTest,
                         testing::Combine(testing::Values(1, 2), testing::Range(0, kPointCount),
                                          testing::Values(SIGKILL)),
                         NameOf);
// A server that breaks by itself.
INSTANTIATE_TEST_SUITE_P(Segv, KeptModelsTest,
                         testing::Combine(testing::Values(2),
                                          testing::Values(static_cast<int>(Point::kFilling),
                                                          static_cast<int>(Point::kCommitting)),
                                          testing::Values(SIGSEGV)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Abort, KeptModelsTest,
                         testing::Combine(testing::Values(2), testing::Values(static_cast<int>(Point::kCommitting)),
                                          testing::Values(SIGABRT)),
                         NameOf);

}  // namespace
}  // namespace paramshard::test
