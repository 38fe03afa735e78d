// Daemons on machines of their own: both ends notice connections that break silently, long before the step timeout, and
// the training goes on when the network is back.
#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/net/machines.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::test {
namespace {

constexpr int kNodes = 2;
// Numbers of a board.
constexpr int kUnderWay = 1;  // the commit that is under way when the network breaks
constexpr int kGoesOn = 2;    // 1: its trainer goes on
constexpr int64_t kAt = 3;    // that commit
constexpr absl::Duration kTimeout = absl::Minutes(2);
// A ping is answered within 5 s, or the connection ends: this leaves two for a machine that is busy.
constexpr absl::Duration kShortStop = absl::Seconds(3);
constexpr char kStepTimeout[] = "--step-timeout=10m";

class PartitionTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    absl::StatusOr<Machines> machines = Machines::Make(kNodes);
    if (absl::IsFailedPrecondition(machines.status())) GTEST_SKIP() << machines.status().message();
    ASSERT_OK(machines.status());
    machines_.emplace(*std::move(machines));
  }

  void Start() {
    // Earlier daemons end first: they have the same folders.
    for (auto& daemon : daemons_) daemon.reset();
    for (int node = 0; node < kNodes; ++node) {
      const tls::Files files = Install(absl::StrCat(folder_.path(), "/", node),
                                       authority_.Issue({absl::StrCat(kWorldUri, "/node/", node)}), authority_.cert());
      daemons_[node].emplace(DaemonProcess::Spawn(
          Program(PARAMSHARDD), sockets_[node].path(),
          {DeviceFlagOf(node), absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), "--keeper=off",
           kStepTimeout, absl::StrCat("--cluster-address=", Machines::Address(0), ":7777"), "--trusted-data-network=on",
           absl::StrCat("--data-address=", Machines::Address(node)), "--tls-cert=" + files.cert,
           "--tls-key=" + files.key, "--tls-ca=" + files.ca},
          machines_->Of(node)));
    }
    for (auto& daemon : daemons_) ASSERT_OK(daemon->AwaitReady());
  }
  absl::StatusOr<nlohmann::json> Ctl(int node, const std::string& words) const {
    ASSIGN_OR_RETURN(
        const std::string text,
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[node].path(), " -o json ", words)));
    return nlohmann::json::parse(text);
  }
  bool IsRunning(int node) const {
    const absl::StatusOr<nlohmann::json> models = Ctl(node, "models");
    EXPECT_OK(models.status());
    return models.ok() && (*models)["models"][0]["running"].get<bool>();
  }
  bool HasStartedOneEpoch(int node) const {
    const absl::StatusOr<nlohmann::json> page = Ctl(node, "metrics");
    EXPECT_OK(page.status());
    return page.ok() && absl::StrContains((*page)["text"].get<std::string>(), "\nparamshard_epochs_started_total 1\n");
  }
  std::string StateHash(int node) const {
    const absl::StatusOr<nlohmann::json> verified = Ctl(node, "verify m");
    EXPECT_OK(verified.status());
    return verified.ok() ? (*verified)["summary"]["stateHash"].get<std::string>() : "";
  }

  // Trains both ranks. Calls `breaks` while a commit waits for rank 0, which goes on afterwards.
  std::vector<std::string> Train(const std::function<void()>& breaks) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank, &breaks](Board& board) {
        Training training{.socket_dir = sockets_[rank].path(), .model = "m", .rank = rank};
        if (GetParam()) training.shard_size = kNodes;
        bool cut = false;
        training.at = [&](Point at, int64_t commit) {
          if (breaks == nullptr || rank != 0 || commit != kAt || at != Point::kPushed || cut) return;
          cut = true;
          Reach(board, kUnderWay, static_cast<uint32_t>(commit));
          EXPECT_TRUE(AwaitNumber(board, kGoesOn, 1, kTimeout));
        };
        return TrainOn(training);
      }));
    }
    if (breaks != nullptr) {
      EXPECT_TRUE(trainers[0].AwaitNumber(kUnderWay, kAt));
      for (int node = 0; node < kNodes; ++node) EXPECT_TRUE(IsRunning(node)) << "node " << node;
      breaks();
      Reach(trainers[0].board(), kGoesOn, 1);
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await(kTimeout));
    return {StateHash(0), StateHash(1)};
  }
  // Comes again for as long as the other daemon is away.
  static absl::Status TrainOn(const Training& training) {
    absl::Status status = absl::UnavailableError("not yet");
    for (const absl::Time end = absl::Now() + kTimeout; absl::IsUnavailable(status) && absl::Now() < end;) {
      status = test::Train(training);
    }
    return status;
  }
  std::vector<std::string> Uninterrupted() {
    Start();
    return Train(nullptr);
  }
  // Both daemons tell their trainers that the epoch is over.
  void AwaitEpochEnds() const {
    const absl::Time end = absl::Now() + kTimeout;
    for (int node = 0; node < kNodes; ++node) {
      while (IsRunning(node) && absl::Now() < end) {
      }
      EXPECT_LT(absl::Now(), end) << "node " << node;
    }
  }

  const TestAuthority authority_;
  const TemporaryDirectory folder_;
  std::optional<Machines> machines_;
  TemporaryDirectory sockets_[kNodes];
  std::optional<DaemonProcess> daemons_[kNodes];
};

TEST_P(PartitionTest, ACutIsNoticedByBothEndsAndTheTrainingGoesOnBehindIt) {
  const std::vector<std::string> expected = Uninterrupted();
  Start();
  EXPECT_EQ(Train([&] {
              ASSERT_OK(machines_->Cut(1));
              AwaitEpochEnds();
              ASSERT_OK(machines_->Join(1));
            }),
            expected);
}

TEST_P(PartitionTest, ALinkThatWorksOneWayAloneIsNoticedByBothEnds) {
  const std::vector<std::string> expected = Uninterrupted();
  const int mute = GetParam() ? 1 : 0;
  Start();
  EXPECT_EQ(Train([&] {
              ASSERT_OK(machines_->Mute(mute, 1 - mute));
              AwaitEpochEnds();
              ASSERT_OK(machines_->Unmute(mute, 1 - mute));
            }),
            expected);
}

TEST_P(PartitionTest, AShortStopOfADaemonEndsNoEpoch) {
  const std::vector<std::string> expected = Uninterrupted();
  Start();
  EXPECT_EQ(Train([&] {
              daemons_[1]->Signal(SIGSTOP);
              absl::SleepFor(kShortStop);
              daemons_[1]->Signal(SIGCONT);
            }),
            expected);
  for (int node = 0; node < kNodes; ++node) EXPECT_TRUE(HasStartedOneEpoch(node)) << "node " << node;
}

TEST_P(PartitionTest, AStopThatLastsIsNoticedAndTheTrainingGoesOnBehindIt) {
  const std::vector<std::string> expected = Uninterrupted();
  Start();
  EXPECT_EQ(Train([&] {
              daemons_[1]->Signal(SIGSTOP);
              const absl::Time end = absl::Now() + kTimeout;
              while (IsRunning(0) && absl::Now() < end) {
              }
              EXPECT_LT(absl::Now(), end);
              daemons_[1]->Signal(SIGCONT);
              AwaitEpochEnds();
            }),
            expected);
}

INSTANTIATE_TEST_SUITE_P(Worlds, PartitionTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sharded" : "Replicas"; });

}  // namespace
}  // namespace paramshard::test
