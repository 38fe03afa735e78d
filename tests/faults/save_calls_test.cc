// Every system call of a real daemon's save fails once, or is the daemon's last: checkpoints on the disk are whole, the
// model goes on, and the next start removes all of an interrupted save.

#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/verification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/disk_faults.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using testing::IsEmpty;
using testing::Not;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr char kModel[] = "saved";
// With sanitizers, which make a save take a second, every third call of a save fails; else every one.
#ifdef PARAMSHARD_SANITIZE
constexpr int64_t kStride = 3;
constexpr int64_t kWorldStride = 16;
#else
constexpr int64_t kStride = 1;
constexpr int64_t kWorldStride = 6;
#endif
constexpr int kNodes = 2;

// Daemons whose disk fails below their folder of checkpoints.
class FailingDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TestDevices() == "cuda") GTEST_SKIP() << "needs cpu devices: on a GPU a daemon takes seconds to start";
  }
  static absl::StatusOr<nlohmann::json> CtlAt(const TemporaryDirectory& sockets, const std::string& words) {
    ASSIGN_OR_RETURN(const std::string output,
                     OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets.path(), " -o json ", words,
                                           " 2>/dev/null")));
    return nlohmann::json::parse(output);
  }
  // Returns -1 while there is no server.
  static pid_t ServerPidAt(const TemporaryDirectory& sockets) {
    const absl::StatusOr<nlohmann::json> version = CtlAt(sockets, "version");
    return version.ok() ? static_cast<pid_t>(std::stol((*version)["pid"].get<std::string>())) : -1;
  }
  // Masters and moments.
  static std::string StateHashAt(const TemporaryDirectory& sockets) {
    const absl::StatusOr<nlohmann::json> verified = CtlAt(sockets, absl::StrCat("verify ", kModel));
    EXPECT_OK(verified.status());
    return verified.ok() ? (*verified)["summary"]["stateHash"].get<std::string>() : "";
  }
  // Returns the published step; nullopt if the save has failed before.
  static std::optional<std::string> SaveAt(const TemporaryDirectory& sockets) {
    const absl::StatusOr<nlohmann::json> saved = CtlAt(sockets, absl::StrCat("save ", kModel, " --wait"));
    if (!saved.ok() || (*saved)["save"]["state"] != "SAVE_STATE_PUBLISHED") return std::nullopt;
    const std::string path = (*saved)["save"]["path"];
    return path.substr(path.rfind('/') + 1);
  }
  // Comes again for as long as servers end under it.
  static absl::Status TrainOn(const Training& training) {
    absl::Status status = absl::UnavailableError("not yet");
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::IsUnavailable(status) && absl::Now() < deadline;) {
      status = Train(training);
    }
    return status;
  }
  std::string folder() const { return absl::StrCat(saves_.path(), "/", kModel); }
  std::vector<std::string> Leftovers() const { return checkpoint::ListTemporaryFolders(folder()).value(); }
  // Returns the steps that are whole, and checks that every one verifies.
  std::vector<std::string> WholeSteps() const {
    const std::vector<std::string> steps = checkpoint::ListStepFolders(folder()).value();
    for (const std::string& step : steps) {
      const checkpoint::Verification verified =
          checkpoint::VerifyCheckpoint(absl::StrCat(folder(), "/", step), {}, [](int64_t, int64_t) {});
      EXPECT_TRUE(verified.ok()) << step << ": " << verified.damages.size() << " damages";
    }
    return steps;
  }

  const TemporaryDirectory saves_;
  const TemporaryDirectory control_;
  DiskFaults faults_{Program(DISK_FAULTS_LIBRARY), control_.path() + "/faults", saves_.path()};
};

// One daemon of one device.
class FailingDaemonTest : public FailingDiskTest {
 protected:
  void Start(const std::vector<std::string>& more) {
    std::vector<std::string> flags = DeviceFlags(1);
    flags.push_back("--save-dir=" + saves_.path());
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), flags, kTimeout,
                                       {.environment = faults_.Environment()});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }
  absl::StatusOr<nlohmann::json> Ctl(const std::string& words) const { return CtlAt(sockets_, words); }
  pid_t ServerPid() const { return ServerPidAt(sockets_); }
  // Waits for a server other than `before`.
  bool AwaitServer(pid_t before) const {
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::Now() < deadline;) {
      const pid_t pid = ServerPid();
      if (pid != -1 && pid != before) return true;
    }
    return false;
  }
  Training TrainingTo(int64_t commits) const {
    Training training{.socket_dir = sockets_.path(), .model = kModel, .rank = 0, .commits = commits};
    training.restart_timeout = kTimeout;
    return training;
  }
  void TrainTo(int64_t commits) const {
    ASSERT_OK(ChildProcess::Run([&](Board&) { return TrainOn(TrainingTo(commits)); }).Await(kTimeout));
  }
  // Returns the hash after a training on a daemon without faults.
  static std::string StateHashAfter(Training training) {
    const TemporaryDirectory sockets;
    training.socket_dir = sockets.path();
    const auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets.path(), DeviceFlags(1));
    EXPECT_OK(daemon.status());
    EXPECT_OK(ChildProcess::Run([&](Board&) { return Train(training); }).Await(kTimeout));
    return StateHashAt(sockets);
  }

  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

class SaveCallsTest : public FailingDaemonTest, public testing::WithParamInterface<DiskFault> {
 protected:
  // The first call that fails; each way to fail has others of them where not all do.
  static int64_t First() { return 1 + static_cast<int64_t>(GetParam()) % kStride; }
  std::optional<std::string> Save() const { return SaveAt(sockets_); }
  // Checks the state after the `hit`-th save that a fault has hit.
  void ExpectSoundAfter(pid_t server, int hit) const {
    EXPECT_THAT(WholeSteps(), Not(IsEmpty())) << "there was one before";
    if (GetParam() == DiskFault::kKill) {
      ASSERT_TRUE(AwaitServer(server));
      EXPECT_THAT(Leftovers(), IsEmpty());
    }
    // The keeper's pauses, which double, begin anew with a restart that was asked for.
    if (Leftovers().empty() && (GetParam() != DiskFault::kKill || hit % 3 != 0)) return;
    ASSERT_OK(Ctl("restart").status());
    EXPECT_THAT(Leftovers(), IsEmpty());
    EXPECT_THAT(WholeSteps(), Not(IsEmpty()));
  }
};

TEST_P(SaveCallsTest, FailOneAfterTheOtherAndNothingIsLostOrLeft) {
  // Every save that is published deletes the one before.
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on", "--save-keep=1", "--save-on-drain=off"}));
  int64_t commit = 1;
  ASSERT_NO_FATAL_FAILURE(TrainTo(commit));
  ASSERT_TRUE(Save().has_value());
  int hits = 0;
  int64_t n = First() - kStride;
  // A save that follows one that broke off has other calls than one that follows a whole one.
  for (int beyond = 0; beyond < 2;) {
    n += kStride;
    SCOPED_TRACE(absl::StrCat("call ", n));
    ASSERT_NO_FATAL_FAILURE(TrainTo(++commit));
    // One that broke off while it deleted leaves more to the next one: they would grow as fast as n.
    if (WholeSteps().size() > 1) {
      ASSERT_TRUE(Save().has_value());
      ASSERT_THAT(WholeSteps(), testing::SizeIs(1));
      ASSERT_NO_FATAL_FAILURE(TrainTo(++commit));
    }
    const pid_t server = ServerPid();
    faults_.Arm(n, GetParam());
    const std::optional<std::string> published = Save();
    beyond = faults_.calls() < n ? beyond + 1 : 0;
    const bool hit = faults_.Disarm();
    if (hit) {
      ASSERT_NO_FATAL_FAILURE(ExpectSoundAfter(server, ++hits));
    }
    if (published.has_value()) {
      EXPECT_THAT(WholeSteps(), testing::Contains(*published));
    } else {
      EXPECT_TRUE(hit) << "a save whose calls all succeed is published";
    }
  }
  EXPECT_GE(n, 20) << "the library counts calls";
  EXPECT_GE(hits * kStride, GetParam() == DiskFault::kShort ? 3 : 20);
  RecordProperty("calls", absl::StrCat(n));
  ASSERT_NO_FATAL_FAILURE(TrainTo(commit += 10));
  EXPECT_EQ(StateHashAt(sockets_), StateHashAfter(TrainingTo(commit)));
  EXPECT_TRUE(Save().has_value());
  EXPECT_THAT(WholeSteps(), testing::SizeIs(1));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

std::string NameOf(const testing::TestParamInfo<DiskFault>& info) {
  static constexpr const char* kNames[] = {"Kill", "Full", "Error", "Short"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(, SaveCallsTest,
                         testing::Values(DiskFault::kKill, DiskFault::kFull, DiskFault::kError, DiskFault::kShort),
                         NameOf);

// Numbers of a board.
constexpr int kKills = 0;
constexpr int kInCopy = 1;  // kills before the save touched the disk

// A save is begun before its commit is answered, and touches the disk when the state is copied.
TEST_F(FailingDaemonTest, AServerThatIsKilledWhileItCopiesForASaveIsFollowedByOneThatGoesOn) {
  constexpr int64_t kEvery = 4;
  constexpr uint32_t kTimes = 4;
  Training training = TrainingTo(kEvery * kTimes + 10);
  training.rows_factor = 30;
  const std::string expected = StateHashAfter(training);
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on", absl::StrCat("--save-every=", kEvery)}));
  ChildProcess trainer = ChildProcess::Run([&](Board& board) {
    pid_t server = -1;
    training.at = [&](Point at, int64_t commit) {
      if (commit % kEvery != 0 || commit / kEvery != board.numbers[kKills] + 1 || board.numbers[kKills] == kTimes) {
        return;
      }
      if (at == Point::kStart) {
        server = ServerPid();
        faults_.Arm(DiskFaults::kNever, DiskFault::kKill);
      }
      if (at != Point::kCommitted || server == -1) return;
      const bool in_copy = faults_.calls() == 0;
      kill(server, SIGKILL);
      ++board.numbers[kKills];
      if (in_copy && faults_.calls() == 0) ++board.numbers[kInCopy];
    };
    return TrainOn(training);
  });
  ASSERT_OK(trainer.Await(kTimeout));
  EXPECT_EQ(trainer.board().numbers[kKills], kTimes);
  EXPECT_GE(trainer.board().numbers[kInCopy], 1u);
  EXPECT_EQ(StateHashAt(sockets_), expected);
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  EXPECT_THAT(WholeSteps(), Not(IsEmpty()));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

// Two daemons of one device each.
class FailingWorldTest : public FailingDiskTest {
 protected:
  using StateHashes = std::vector<std::string>;
  struct TwoDaemons {
    TemporaryDirectory sockets[kNodes];
    std::optional<DaemonProcess> daemons[kNodes];
  };

  static void Start(TwoDaemons& world, const std::vector<std::string>& more, const Surroundings& surroundings) {
    const std::string cluster = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
    for (int node = 0; node < kNodes; ++node) {
      std::vector<std::string> flags = DeviceFlags(1);
      flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), cluster});
      flags.insert(flags.end(), more.begin(), more.end());
      world.daemons[node].emplace(
          DaemonProcess::Spawn(Program(PARAMSHARDD), world.sockets[node].path(), flags, surroundings));
    }
    for (auto& daemon : world.daemons) ASSERT_OK(daemon->AwaitReady());
  }
  static void TrainTo(const TwoDaemons& world, int64_t commits) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers.push_back(ChildProcess::Run([&, rank](Board&) {
        Training training{.socket_dir = world.sockets[rank].path(), .model = kModel, .rank = rank};
        training.shard_size = kNodes;
        training.commits = commits;
        training.restart_timeout = kTimeout;
        return TrainOn(training);
      }));
    }
    for (ChildProcess& trainer : trainers) ASSERT_OK(trainer.Await(2 * kTimeout));
  }
  static StateHashes StateHashesOf(const TwoDaemons& world) {
    return {StateHashAt(world.sockets[0]), StateHashAt(world.sockets[1])};
  }
  std::vector<pid_t> ServerPids() const { return {ServerPidAt(world_.sockets[0]), ServerPidAt(world_.sockets[1])}; }
  // Both serve, and one of them is another than before.
  bool AwaitServers(const std::vector<pid_t>& before) const {
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::Now() < deadline;) {
      const std::vector<pid_t> pids = ServerPids();
      if (pids[0] != -1 && pids[1] != -1 && pids != before) return true;
    }
    return false;
  }

  TwoDaemons world_;
};

// Node 0 or the other one, whichever comes to the call.
TEST_F(FailingWorldTest, AServerThatIsKilledAnywhereInASaveIsFollowedByOneThatGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start(world_,
                                {"--keeper=on", "--save-dir=" + saves_.path(), "--save-keep=1", "--save-on-drain=off"},
                                {.environment = faults_.Environment()}));
  int64_t commit = 1;
  ASSERT_NO_FATAL_FAILURE(TrainTo(world_, commit));
  ASSERT_TRUE(SaveAt(world_.sockets[0]).has_value());
  int kills = 0;
  int64_t n = 1;
  for (bool hit = true; hit; n += kWorldStride) {
    SCOPED_TRACE(absl::StrCat("call ", n));
    ASSERT_NO_FATAL_FAILURE(TrainTo(world_, ++commit));
    if (WholeSteps().size() > 1) {
      ASSERT_TRUE(SaveAt(world_.sockets[0]).has_value());
      ASSERT_NO_FATAL_FAILURE(TrainTo(world_, ++commit));
    }
    const std::vector<pid_t> before = ServerPids();
    faults_.Arm(n, DiskFault::kKill);
    SaveAt(world_.sockets[0]);
    hit = faults_.Disarm();
    if (!hit) break;
    ASSERT_TRUE(AwaitServers(before));
    EXPECT_THAT(WholeSteps(), Not(IsEmpty()));
    // A node 0 that lives on gives the save up as soon as it has heard.
    EXPECT_THAT(Poll({.timeout = kTimeout}, [this]() -> absl::StatusOr<bool> { return Leftovers().empty(); }),
                IsOkAndHolds(true));
    if (++kills % 3 != 0) continue;
    // The keepers' pauses, which double, begin anew.
    for (const TemporaryDirectory& sockets : world_.sockets) ASSERT_OK(CtlAt(sockets, "restart").status());
  }
  EXPECT_GE(kills, 3);
  ASSERT_NO_FATAL_FAILURE(TrainTo(world_, commit += 10));
  EXPECT_TRUE(SaveAt(world_.sockets[0]).has_value());
  EXPECT_THAT(WholeSteps(), testing::SizeIs(1));
  TwoDaemons undisturbed;
  ASSERT_NO_FATAL_FAILURE(Start(undisturbed, {}, {}));
  ASSERT_NO_FATAL_FAILURE(TrainTo(undisturbed, commit));
  EXPECT_EQ(StateHashesOf(world_), StateHashesOf(undisturbed));
}

}  // namespace
}  // namespace paramshard::test
