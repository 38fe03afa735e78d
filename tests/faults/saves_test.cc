// A real daemon that trains, saves and stops; paramshardctl checks its checkpoints.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class SavesTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> more) {
    std::vector<std::string> flags = DeviceFlags(ranks_);
    flags.push_back("--save-dir=" + saves_.path());
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }
  void TrainTo(int64_t commits) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks_; ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank, commits](Board&) {
        return Train({.socket_dir = sockets_.path(), .model = "saved", .rank = rank, .commits = commits});
      }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
  }
  absl::StatusOr<std::string> Ctl(const std::string& arguments) {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " ", arguments));
  }
  absl::StatusOr<std::string> CtlOfDaemon(const std::string& arguments) {
    return Ctl(absl::StrCat("--socket-dir=", sockets_.path(), " ", arguments));
  }
  void ExpectStopped() {
    daemon_->Signal(SIGTERM);
    EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  }

  const int ranks_ = DevicesUpTo(2);
  const TemporaryDirectory saves_;
  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(SavesTest, ASaveByCallIsACheckpointThatVerifies) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-on-drain=off"}));
  TrainTo(3);
  ASSERT_OK_AND_ASSIGN(const std::string text, CtlOfDaemon("-o json save saved --wait"));
  const nlohmann::json save = nlohmann::json::parse(text)["save"];
  EXPECT_EQ(save["state"], "SAVE_STATE_PUBLISHED") << text;
  EXPECT_EQ(save["step"], "3");
  EXPECT_OK(Ctl("checkpoint verify " + save["path"].get<std::string>()));
  EXPECT_THAT(CtlOfDaemon("saves"), IsOkAndHolds(HasSubstr("saved: 1 published, 0 abandoned")));
  ExpectStopped();
}

TEST_F(SavesTest, ADaemonThatStopsSavesWhatIsNotSaved) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-every=2"}));
  TrainTo(5);
  ExpectStopped();
  ASSERT_OK_AND_ASSIGN(const std::string listed, Ctl("checkpoint list " + saves_.path() + "/saved"));
  EXPECT_THAT(listed, HasSubstr("step-000000000005-"));
  const std::string latest = listed.substr(listed.find("step-000000000005-"), 26);
  EXPECT_OK(Ctl("checkpoint verify " + saves_.path() + "/saved/" + latest));
}

// Neither a cron job that saves, nor a stop, fails because nothing is left to be done.
TEST_F(SavesTest, AStateThatIsSavedIsSavedAlreadyAfterARestartToo) {
  ASSERT_NO_FATAL_FAILURE(Start({"--keeper=on"}));
  TrainTo(3);
  const auto save = [&]() -> absl::StatusOr<nlohmann::json> {
    ASSIGN_OR_RETURN(const std::string text, CtlOfDaemon("-o json save saved --wait"));
    return nlohmann::json::parse(text)["save"];
  };
  ASSERT_OK_AND_ASSIGN(const nlohmann::json first, save());
  EXPECT_EQ(first["state"], "SAVE_STATE_PUBLISHED");
  for (const char* const before : {"version", "restart"}) {
    ASSERT_OK(CtlOfDaemon(before).status());
    ASSERT_OK_AND_ASSIGN(const nlohmann::json again, save());
    EXPECT_EQ(again["state"], "SAVE_STATE_ALREADY_SAVED") << before;
    EXPECT_EQ(again.at("path"), first.at("path"));
  }
  ExpectStopped();
  EXPECT_THAT(checkpoint::ListStepFolders(saves_.path() + "/saved"), IsOkAndHolds(testing::SizeIs(1)));
}

// Two daemons of one device each, that save into one folder.
class WorldSavesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (DevicesUpTo(kNodes) < kNodes) GTEST_SKIP() << "needs two GPUs, got " << DevicesUpTo(kNodes);
  }
  void Start(const std::vector<std::string>& more = {}) {
    for (int node = 0; node < kNodes; ++node) {
      std::vector<std::string> flags = DeviceFlags(1, node);
      flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), cluster_,
                                 "--doubt-timeout=1s", "--save-dir=" + saves_.path()});
      flags.insert(flags.end(), more.begin(), more.end());
      daemons_[node].emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags));
    }
    for (auto& daemon : daemons_) ASSERT_OK(daemon->AwaitReady());
  }
  ChildProcess Trainer(int rank, int64_t commits) {
    return ChildProcess::Run([this, rank, commits](Board& board) {
      Training training{.socket_dir = sockets_[rank].path(), .model = "saved", .rank = rank, .commits = commits};
      training.shard_size = kNodes;
      training.resume = false;
      training.at = [&board](Point reached, int64_t commit) {
        if (reached == Point::kCommitted) Reach(board, kStepReached, static_cast<uint32_t>(commit));
      };
      return Train(training);
    });
  }
  std::vector<ChildProcess> Trainers(int64_t commits) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kNodes; ++rank) trainers.push_back(Trainer(rank, commits));
    return trainers;
  }
  void TrainTo(int64_t commits) {
    for (ChildProcess& trainer : Trainers(commits)) EXPECT_OK(trainer.Await());
  }
  void Kill(int node) {
    daemons_[node]->Signal(SIGKILL);
    EXPECT_THAT(daemons_[node]->AwaitExit(kTimeout), IsOkAndHolds(128 + SIGKILL));
  }
  // Nothing is saved or deleted any more.
  void Stop() {
    for (auto& daemon : daemons_) daemon->Signal(SIGTERM);
    for (auto& daemon : daemons_) EXPECT_THAT(daemon->AwaitExit(kTimeout), IsOkAndHolds(0));
  }
  absl::StatusOr<std::string> Ctl(const std::string& arguments) {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " ", arguments));
  }
  absl::StatusOr<std::string> CtlOf(int node, const std::string& arguments) {
    return Ctl(absl::StrCat("--socket-dir=", sockets_[node].path(), " ", arguments));
  }
  std::string folder() const { return saves_.path() + "/saved"; }
  std::vector<std::string> Leftovers() const { return *checkpoint::ListTemporaryFolders(folder()); }
  // Every one verifies; how many there are.
  int VerifiedSteps() {
    const std::vector<std::string> steps = *checkpoint::ListStepFolders(folder());
    for (const std::string& step : steps) EXPECT_OK(Ctl(absl::StrCat("checkpoint verify ", folder(), "/", step)));
    return static_cast<int>(steps.size());
  }
  // A save that waits for a daemon that stands still.
  void BeginSaveThatWaitsForNode1() {
    daemons_[1]->Pause();
    ASSERT_OK(CtlOf(0, "save saved"));
    EXPECT_THAT(Poll({.timeout = kTimeout}, [this]() -> absl::StatusOr<bool> { return !Leftovers().empty(); }),
                IsOkAndHolds(true));
    ASSERT_FALSE(Leftovers().empty());
  }

  static constexpr int kNodes = 2;
  static constexpr int kStepReached = 0;
  const std::string cluster_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  const TemporaryDirectory saves_;
  TemporaryDirectory sockets_[kNodes];
  std::optional<DaemonProcess> daemons_[kNodes];
};

TEST_F(WorldSavesTest, AWorldThatStopsHasSavedWhatItHeld) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-every=2"}));
  TrainTo(5);
  Stop();
  ASSERT_OK_AND_ASSIGN(const std::string listed, Ctl("checkpoint list " + folder()));
  EXPECT_THAT(listed, HasSubstr("step-000000000005-"));
  EXPECT_GE(VerifiedSteps(), 1);
  EXPECT_THAT(Leftovers(), testing::IsEmpty());
}

TEST_F(WorldSavesTest, OnlyNodeZeroIsAskedForSaves) {
  ASSERT_NO_FATAL_FAILURE(Start());
  TrainTo(2);
  EXPECT_THAT(CtlOf(1, "save saved --wait"), testing::Not(IsOk()));
  ASSERT_OK(CtlOf(0, "save saved --wait"));
  EXPECT_EQ(VerifiedSteps(), 1);
}

TEST_F(WorldSavesTest, WhatAWorldHasSavedIsRestoredIntoAnotherOne) {
  ASSERT_NO_FATAL_FAILURE(Start());
  TrainTo(3);
  Stop();
  const int ranks = DevicesUpTo(3);
  std::vector<std::string> flags = DeviceFlags(ranks);
  flags.insert(flags.end(), {"--save-dir=" + saves_.path(), "--restore=latest"});
  ASSERT_OK_AND_ASSIGN(const DaemonProcess one, DaemonProcess::Start(Program(PARAMSHARDD), sockets_[0].path(), flags));
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < ranks; ++rank) {
    trainers.push_back(ChildProcess::Run([this, rank](Board&) {
      Training training{.socket_dir = sockets_[0].path(), .model = "saved", .rank = rank, .commits = 5};
      training.at = [](Point, int64_t commit) {
        if (commit < 4) raise(SIGABRT);  // it did not begin with what was saved
      };
      return Train(training);
    }));
  }
  for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
}

// Restores of a model that two daemons share, with the state of both.
class WorldRestoredTest : public WorldSavesTest {
 protected:
  // Returns the hash of a daemon's masters and moments; checks that planes match them.
  std::string StateHash(int node) {
    const auto output = CtlOf(node, "-o json verify saved");
    EXPECT_OK(output.status());
    if (!output.ok()) return "";
    const nlohmann::json verified = nlohmann::json::parse(*output);
    EXPECT_EQ(verified["summary"]["mismatchCount"], "0") << *output;
    return verified["summary"]["stateHash"];
  }
  std::vector<std::string> StateHashes() { return {StateHash(0), StateHash(1)}; }
  // A checkpoint of commit 3, and where ten more commits lead.
  std::vector<std::string> SaveAndContinue() {
    TrainTo(3);
    EXPECT_OK(CtlOf(0, "save saved --wait"));
    TrainTo(13);
    return StateHashes();
  }
  // `restore` at node 0, which waits for a node 1 that stands still.
  ChildProcess RestoreThatWaitsForNode1() {
    daemons_[1]->Pause();
    ChildProcess restore =
        ChildProcess::Run([this](Board&) { return CtlOf(0, "restore saved latest --quiet 2>&1").status(); });
    EXPECT_THAT(Poll({.timeout = kTimeout},
                     [this]() -> absl::StatusOr<bool> {
                       const auto models = CtlOf(0, "models");
                       return models.ok() && absl::StrContains(*models, "restoring");
                     }),
                IsOkAndHolds(true));
    return restore;
  }
};

TEST_F(WorldSavesTest, ADaemonThatIsKilledInTheMiddleOfASaveLeavesNothingOfIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  TrainTo(2);
  ASSERT_NO_FATAL_FAILURE(BeginSaveThatWaitsForNode1());
  Kill(1);
  EXPECT_THAT(Poll({.timeout = kTimeout}, [this]() -> absl::StatusOr<bool> { return Leftovers().empty(); }),
              IsOkAndHolds(true));
  EXPECT_THAT(Leftovers(), testing::IsEmpty());
  EXPECT_EQ(VerifiedSteps(), 0);
  EXPECT_THAT(CtlOf(0, "saves"), IsOkAndHolds(HasSubstr("0 published, 1 abandoned")));
}

TEST_F(WorldSavesTest, WhatAKilledNodeZeroLeavesIsGoneAfterTheNextStart) {
  ASSERT_NO_FATAL_FAILURE(Start());
  TrainTo(2);
  ASSERT_NO_FATAL_FAILURE(BeginSaveThatWaitsForNode1());
  Kill(0);
  Kill(1);
  ASSERT_FALSE(Leftovers().empty());
  ASSERT_NO_FATAL_FAILURE(Start());
  TrainTo(1);
  EXPECT_THAT(Leftovers(), testing::IsEmpty());
  ASSERT_OK(CtlOf(0, "save saved --wait"));
  EXPECT_EQ(VerifiedSteps(), 1);
}

TEST_F(WorldSavesTest, TrainersAreToldOfAKilledDaemonAsWithoutSaves) {
  ASSERT_NO_FATAL_FAILURE(Start({"--save-every=1"}));
  std::vector<ChildProcess> trainers = Trainers(1'000'000);
  ASSERT_TRUE(trainers[0].AwaitNumber(kStepReached, 4));
  Kill(1);
  EXPECT_THAT(trainers[0].Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1")));
  EXPECT_THAT(trainers[1].Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("daemon")));
  Kill(0);
  ASSERT_NO_FATAL_FAILURE(Start({"--save-every=1"}));
  TrainTo(1);
  Stop();
  VerifiedSteps();
}

TEST_F(WorldRestoredTest, BothDaemonsRestoreAndEndInTheSameBytes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<std::string> expected = SaveAndContinue();
  EXPECT_THAT(CtlOf(1, "restore saved latest --quiet"), testing::Not(IsOk()));
  ASSERT_OK(CtlOf(0, "restore saved latest --quiet"));
  EXPECT_NE(StateHashes(), expected);
  TrainTo(13);
  EXPECT_EQ(StateHashes(), expected);
}

TEST_F(WorldRestoredTest, AWorldThatIsStartedAgainBeginsWithItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(Start({"--restore=latest"}));
  const std::vector<std::string> expected = SaveAndContinue();
  Kill(0);
  Kill(1);
  ASSERT_NO_FATAL_FAILURE(Start({"--restore=latest"}));
  TrainTo(13);
  EXPECT_EQ(StateHashes(), expected);
}

TEST_F(WorldRestoredTest, ADaemonThatIsKilledBeforeItIsReadyLeavesNodeZeroAsItWas) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<std::string> expected = SaveAndContinue();
  ChildProcess restore = RestoreThatWaitsForNode1();
  Kill(1);
  EXPECT_THAT(restore.Await(), StatusIs(testing::_, HasSubstr("node 1: its daemon was lost")));
  EXPECT_EQ(StateHash(0), expected[0]);
}

TEST_F(WorldRestoredTest, ANodeZeroThatIsKilledBeforeTheGoLeavesTheOthersAsTheyWere) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<std::string> expected = SaveAndContinue();
  const ChildProcess restore = RestoreThatWaitsForNode1();
  Kill(0);
  daemons_[1]->Signal(SIGCONT);
  // Node 1 may get the restore first, without a leader.
  EXPECT_THAT(Poll({.timeout = kTimeout}, [this]() -> absl::StatusOr<bool> { return CtlOf(1, "verify saved").ok(); }),
              IsOkAndHolds(true));
  EXPECT_EQ(StateHash(1), expected[1]);
}

}  // namespace
}  // namespace paramshard::test
