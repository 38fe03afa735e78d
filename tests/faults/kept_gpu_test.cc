// Models survive faults of GPUs: a server whose context faults, a trainer whose context faults, and servers that are
// killed while another process keeps the GPU busy. The training goes on bit for bit.

#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "nlohmann/json.hpp"
#include "tests/faults/bad_access.h"
#include "tests/faults/busy_gpu.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/gpu_fault.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kFaultCommit = 4;
// Ten more steps show that everything that later steps depend on is unchanged.
constexpr int64_t kCommits = kFaultCommit + 10;
// Numbers of a board.
constexpr int kFirst = 0;     // first commit that was begun
constexpr int kAnswered = 1;  // last answered commit
constexpr int kTwice = 2;     // an answered commit that was begun again
constexpr int kDone = 3;      // number of faults so far
constexpr int kBusy = 4;
constexpr int kWaiting = 5;  // the trainer, for kGo
constexpr int kGo = 6;

// Leaves less of the GPU's memory than this.
constexpr int64_t kLeftBytes = int64_t{64} << 20;

// Takes all memory that the GPU has left, and stops.
absl::Status FillGpu() {
  std::vector<gpu::DeviceMemory> taken;
  for (int64_t bytes = int64_t{64} << 30; bytes >= kLeftBytes;) {
    absl::StatusOr<gpu::DeviceMemory> memory = gpu::DeviceMemory::Create(0, bytes, {0}, /*shareable=*/false);
    if (memory.ok()) {
      taken.push_back(*std::move(memory));
    } else if (absl::IsResourceExhausted(memory.status())) {
      bytes /= 2;
    } else {
      return memory.status();
    }
  }
  raise(SIGSTOP);
  return absl::OkStatus();
}

// This process must not open a GPU: its children do.
bool HasGpu() {
  const auto count = OutputOf("nvidia-smi --list-gpus 2>/dev/null | wc -l");
  return count.ok() && std::atoi(count->c_str()) > 0;
}

class KeptGpuTest : public testing::Test {
 protected:
  using At = std::function<void(Point, int64_t commit, Board&)>;

  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "needs a GPU";
  }

  void Start(const std::vector<std::string>& more, const Surroundings& surroundings = {}) {
    daemon_.reset();
    std::vector<std::string> flags = {"--device=cuda:0"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), flags, kTimeout, surroundings);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }
  absl::StatusOr<nlohmann::json> Ctl(const std::string& words) const {
    ASSIGN_OR_RETURN(
        const std::string output,
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_.path(), " -o json ", words)));
    return nlohmann::json::parse(output);
  }
  pid_t ServerPid() const {
    const absl::StatusOr<nlohmann::json> version = Ctl("version 2>/dev/null");
    return version.ok() ? static_cast<pid_t>(std::stol((*version)["pid"].get<std::string>())) : -1;
  }
  // Waits for a server other than `before`.
  bool AwaitServer(pid_t before) const {
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::Now() < deadline;) {
      const pid_t pid = ServerPid();
      if (pid != -1 && pid != before) return true;
    }
    return false;
  }
  std::string StateHash() const {
    const absl::StatusOr<nlohmann::json> verified = Ctl("verify kept");
    EXPECT_OK(verified.status());
    if (!verified.ok()) return "";
    EXPECT_EQ((*verified)["summary"]["mismatchCount"], "0") << verified->dump(2);
    return (*verified)["summary"]["stateHash"];
  }

  // To the end, or until the server fails otherwise than by its end.
  ChildProcess Train(const At& at) const {
    return ChildProcess::Run([this, at](Board& board) {
      Training training{.socket_dir = sockets_.path(), .model = "kept", .commits = kCommits};
      training.at = [&](Point point, int64_t commit) {
        if (point == Point::kCommitted) board.numbers[kAnswered] = commit;
        if (point == Point::kStart && board.numbers[kFirst] == 0) board.numbers[kFirst] = commit;
        if (point == Point::kStart && commit <= board.numbers[kAnswered]) board.numbers[kTwice] = commit;
        at(point, commit, board);
      };
      absl::Status status = absl::UnavailableError("not yet");
      for (const absl::Time end = absl::Now() + kTimeout; absl::IsUnavailable(status) && absl::Now() < end;) {
        status = test::Train(training);
      }
      return status;
    });
  }
  ChildProcess Train() const {
    return Train([](Point, int64_t, Board&) {});
  }
  // Returns the hash of an undisturbed training.
  std::string UndisturbedHash() {
    Start({});
    EXPECT_OK(Train().Await());
    return StateHash();
  }
  // The training is over, and another trainer goes on with it.
  void ExpectGoesOnAfter(ChildProcess& before, const std::string& expected) {
    ChildProcess after = Train();
    EXPECT_OK(after.Await());
    EXPECT_EQ(before.board().numbers[kDone], 1u);
    EXPECT_GE(before.board().numbers[kAnswered], kFaultCommit - 1);
    EXPECT_GT(after.board().numbers[kFirst], before.board().numbers[kAnswered]) << "no answered commit is made twice";
    EXPECT_EQ(StateHash(), expected);
  }

  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

// --- The context of the server

enum class Next { kByRestart, kByKill };

// (how the next server is started, where in a step the GPU faults)
class FaultedServerTest : public KeptGpuTest, public testing::WithParamInterface<std::tuple<Next, Point>> {};

TEST_P(FaultedServerTest, IsFollowedByOneThatGoesOn) {
  const auto [next, point] = GetParam();
  const std::string expected = UndisturbedHash();
  const TemporaryDirectory control;
  const GpuFault fault(Program(GPU_FAULT_LIBRARY), control.path() + "/fault");
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on"}, {.environment = fault.Environment()}));
  const pid_t server = ServerPid();
  ChildProcess trainer = Train([&fault, point = point](Point at, int64_t commit, Board& board) {
    const bool is_now = commit == kFaultCommit && at == point && board.numbers[kDone] == 0;
    if (is_now && fault.Break().ok()) Reach(board, kDone, 1);
  });
  EXPECT_THAT(trainer.Await(), StatusIs(absl::StatusCode::kInternal, HasSubstr("cuda:0 is broken")));
  if (next == Next::kByRestart) {
    EXPECT_OK(Ctl("restart").status());
  } else {
    kill(server, SIGKILL);
  }
  ASSERT_TRUE(AwaitServer(server));
  ExpectGoesOnAfter(trainer, expected);
}

INSTANTIATE_TEST_SUITE_P(, FaultedServerTest,
                         testing::Values(std::tuple(Next::kByRestart, Point::kCommitting),
                                         std::tuple(Next::kByKill, Point::kCommitting),
                                         std::tuple(Next::kByKill, Point::kHolding)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) == Next::kByRestart ? "Restart" : "Kill",
                                               "Point", static_cast<int>(std::get<1>(info.param)));
                         });

// --- The context of a trainer

// The parameter: true if the server is killed at the same time.
class FaultedTrainerTest : public KeptGpuTest, public testing::WithParamInterface<bool> {};

TEST_P(FaultedTrainerTest, LosesNothing) {
  const std::string expected = UndisturbedHash();
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on"}));
  const pid_t server = ServerPid();
  ChildProcess trainer = Train([server](Point at, int64_t commit, Board& board) {
    if (commit != kFaultCommit || at != Point::kFilling || board.numbers[kDone] != 0) return;
    const auto stream = gpu::Stream::Create(0);
    if (!stream.ok() || !WriteToNowhere(stream->get()).ok()) return;
    if (GetParam()) kill(server, SIGKILL);
    if (stream->Synchronize().ok()) return;
    Reach(board, kDone, 1);
    // The trainer's next call would fail. It ends here, like a process that has lost its context.
    std::_Exit(1);
  });
  trainer.Await().IgnoreError();
  if (GetParam()) {
    ASSERT_TRUE(AwaitServer(server));
  }
  ExpectGoesOnAfter(trainer, expected);
}

INSTANTIATE_TEST_SUITE_P(, FaultedTrainerTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "WithItsServer" : "Alone"; });

// --- Others on the GPU

TEST_F(KeptGpuTest, ServersThatAreKilledBesideABusyContextAreFollowedByOnesThatGoOn) {
  constexpr int64_t kBetween = 3;
  constexpr uint32_t kKills = 4;
  const std::string expected = UndisturbedHash();
  ChildProcess busy = ChildProcess::Run([](Board& board) { return KeepBusy(0, [&board] { Reach(board, kBusy, 1); }); });
  ASSERT_TRUE(busy.AwaitNumber(kBusy, 1));
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on"}));
  ChildProcess trainer = Train([this, server = pid_t{-1}](Point at, int64_t commit, Board& board) mutable {
    const uint32_t kills = board.numbers[kDone];
    if (kills == kKills || commit < kBetween * (kills + 1)) return;
    if (at == Point::kStart) server = ServerPid();
    if (at == Point::kCommitting && server != -1 && kill(server, SIGKILL) == 0) Reach(board, kDone, kills + 1);
  });
  EXPECT_OK(trainer.Await(2 * kTimeout));
  EXPECT_EQ(trainer.board().numbers[kDone], kKills);
  EXPECT_EQ(trainer.board().numbers[kTwice], 0u) << "no answered commit is made twice";
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptGpuTest, AStoppedReaderOnAFullGpuKeepsNoServerFromComingBack) {
  const std::string expected = UndisturbedHash();
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on"}));
  const pid_t server = ServerPid();
  ChildProcess trainer = Train([server](Point at, int64_t commit, Board& board) {
    if (commit != kFaultCommit || board.numbers[kDone] != 0) return;
    if (at == Point::kStart) {
      Reach(board, kWaiting, 1);
      EXPECT_TRUE(AwaitNumber(board, kGo, 1, kTimeout));
    }
    if (at == Point::kCommitting && kill(server, SIGKILL) == 0) Reach(board, kDone, 1);
  });
  ASSERT_TRUE(trainer.AwaitNumber(kWaiting, 1));
  ChildProcess reader = ChildProcess::Run([this](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(const auto reader, Reader::Create({.model = "kept", .socket_dir = sockets_.path()}));
    {
      ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire({.timeout = kTimeout}));
      board.numbers[kFirst] = snapshot.version().commit_number;
      raise(SIGSTOP);
    }
    ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire({.min_commit = kCommits, .timeout = kTimeout}));
    board.numbers[kAnswered] = snapshot.version().commit_number;
    return absl::OkStatus();
  });
  ASSERT_TRUE(reader.AwaitStopped());
  ChildProcess full = ChildProcess::Run([](Board&) { return FillGpu(); });
  ASSERT_TRUE(full.AwaitStopped());
  Reach(trainer.board(), kGo, 1);
  EXPECT_OK(trainer.Await(2 * kTimeout));
  EXPECT_EQ(trainer.board().numbers[kDone], 1u);
  EXPECT_EQ(trainer.board().numbers[kTwice], 0u) << "no answered commit is made twice";
  reader.Signal(SIGCONT);
  EXPECT_OK(reader.Await());
  EXPECT_EQ(reader.board().numbers[kFirst], kFaultCommit - 1);
  EXPECT_EQ(reader.board().numbers[kAnswered], kCommits);
  EXPECT_EQ(StateHash(), expected);
}

}  // namespace
}  // namespace paramshard::test
