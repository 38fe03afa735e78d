// Models of worlds of two daemons outlive their servers: the server of node 0, of node 1, or both are killed at every
// point of a step, and the training goes on bit for bit.

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(120);
constexpr int kNodes = 2;
// A training is killed at some of the points, so that servers need not be started in growing pauses.
constexpr int kGroups = 3;
// The first commit that is killed, and how many are between two.
constexpr int64_t kFirst = 2;
constexpr int64_t kBetween = 2;
// Ten steps follow the last kill.
constexpr int64_t kCommits = kFirst + kBetween * ((kPointCount + kGroups - 1) / kGroups - 1) + 10;
// Numbers of a board.
constexpr int kKills = 0;     // how often servers were killed
constexpr int kAnswered = 1;  // the last commit that was answered
constexpr int kTwice = 2;     // a commit that was answered and begun again

enum class Victims : int { kNode0, kNode1, kBoth };

class KeptWorldsTest : public testing::TestWithParam<std::tuple<bool, Victims, int>> {
 protected:
  static bool sharded() { return std::get<0>(GetParam()); }
  static int group() { return std::get<2>(GetParam()); }
  static std::vector<int> victims() {
    if (std::get<1>(GetParam()) == Victims::kBoth) return {0, 1};
    return {std::get<1>(GetParam()) == Victims::kNode0 ? 0 : 1};
  }

  void SetUp() override {
    if (DevicesUpTo(kNodes) < kNodes) GTEST_SKIP() << "needs two GPUs, got " << DevicesUpTo(kNodes);
  }
  void Start(bool keeper) {
    for (auto& daemon : daemons_) daemon.reset();
    const std::string address = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
    for (int node = 0; node < kNodes; ++node) {
      std::vector<std::string> flags = DeviceFlags(1, node);
      flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", kNodes), address});
      if (keeper) flags.emplace_back("--keeper=on");
      daemons_[node].emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags));
    }
    for (auto& daemon : daemons_) ASSERT_OK(daemon->AwaitReady());
  }
  absl::StatusOr<nlohmann::json> Ctl(int node, const std::string& words) const {
    const absl::StatusOr<std::string> output =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[node].path(), " -o json ", words));
    if (!output.ok()) return output.status();
    return nlohmann::json::parse(*output);
  }
  pid_t ServerPid(int node) const {
    const absl::StatusOr<nlohmann::json> version = Ctl(node, "version");
    return version.ok() ? static_cast<pid_t>(std::stol((*version)["pid"].get<std::string>())) : -1;
  }
  std::vector<std::string> StateHashes() const {
    std::vector<std::string> hashes;
    for (int node = 0; node < kNodes; ++node) {
      const absl::StatusOr<nlohmann::json> verified = Ctl(node, "verify kept");
      EXPECT_OK(verified.status());
      hashes.push_back(verified.ok() ? (*verified)["summary"]["stateHash"].get<std::string>() : "");
    }
    return hashes;
  }
  // Both ranks, to the end, in processes of their own.
  void TrainAll(const std::function<void(Training&, Board&)>& prepare) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank, &prepare](Board& board) {
        Training training{.socket_dir = sockets_[rank].path(), .model = "kept", .scaled = true, .rank = rank};
        if (sharded()) training.shard_size = kNodes;
        training.commits = kCommits;
        if (rank == 0) prepare(training, board);
        return TrainOn(training);
      }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await(kTimeout));
    for (const int number : {kKills, kAnswered, kTwice}) numbers_[number] = trainers[0].board().numbers[number];
  }
  // Comes again for as long as servers end under it.
  static absl::Status TrainOn(const Training& training) {
    absl::Status status = absl::UnavailableError("not yet");
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::IsUnavailable(status) && absl::Now() < deadline;) {
      status = Train(training);
    }
    return status;
  }
  // The point that this commit is killed at.
  static std::optional<Point> PointOf(int64_t commit) {
    if (commit < kFirst || (commit - kFirst) % kBetween != 0) return std::nullopt;
    const int64_t point = group() + (commit - kFirst) / kBetween * kGroups;
    return point < kPointCount ? std::optional(static_cast<Point>(point)) : std::nullopt;
  }
  static int Kills() { return (kPointCount - group() + kGroups - 1) / kGroups; }

  TemporaryDirectory sockets_[kNodes];
  std::optional<DaemonProcess> daemons_[kNodes];
  int64_t numbers_[3] = {};
};

TEST_P(KeptWorldsTest, ATrainingGoesOnFromTheCommitThatTheKilledServersWereAt) {
  ASSERT_NO_FATAL_FAILURE(Start(/*keeper=*/false));
  TrainAll([](Training&, Board&) {});
  const std::vector<std::string> expected = StateHashes();

  ASSERT_NO_FATAL_FAILURE(Start(/*keeper=*/true));
  TrainAll([&](Training& training, Board& board) {
    std::vector<pid_t> servers;
    int64_t killed = 0;
    training.at = [&board, servers, killed, this](Point at, int64_t commit) mutable {
      if (at == Point::kCommitted) board.numbers[kAnswered] = commit;
      if (at == Point::kStart && commit <= board.numbers[kAnswered]) board.numbers[kTwice] = commit;
      const std::optional<Point> point = PointOf(commit);
      if (!point.has_value() || killed == commit) return;
      if (at == Point::kStart) {
        servers.clear();
        for (const int node : victims()) servers.push_back(ServerPid(node));
      }
      if (at != *point || std::count(servers.begin(), servers.end(), -1) > 0) return;
      for (const pid_t server : servers) kill(server, SIGKILL);
      ++board.numbers[kKills];
      killed = commit;
    };
  });
  EXPECT_EQ(numbers_[kKills], Kills());
  EXPECT_EQ(numbers_[kAnswered], kCommits);
  EXPECT_EQ(numbers_[kTwice], 0) << "no answered commit is made twice";
  EXPECT_EQ(StateHashes(), expected);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<bool, Victims, int>>& info) {
  static constexpr const char* kVictims[] = {"Node0", "Node1", "Both"};
  return absl::StrCat(std::get<0>(info.param) ? "Sharded" : "Replicas",
                      kVictims[static_cast<int>(std::get<1>(info.param))], "Points", std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(, KeptWorldsTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values(Victims::kNode0, Victims::kNode1, Victims::kBoth),
                                          testing::Range(0, kGroups)),
                         NameOf);

class RestartedWorldsTest : public KeptWorldsTest {};

TEST_P(RestartedWorldsTest, ARestartOfADaemonKeepsItsModels) {
  ASSERT_NO_FATAL_FAILURE(Start(/*keeper=*/true));
  TrainAll([](Training&, Board&) {});
  const std::vector<std::string> before = StateHashes();
  for (int node = 0; node < kNodes; ++node) {
    const pid_t server = ServerPid(node);
    EXPECT_OK(Ctl(node, "restart").status());
    EXPECT_NE(ServerPid(node), server);
    EXPECT_EQ(StateHashes(), before);
  }
  TrainAll([](Training&, Board&) {});  // attaches, and finds nothing left to do
  EXPECT_EQ(StateHashes(), before);
}

INSTANTIATE_TEST_SUITE_P(, RestartedWorldsTest, testing::Values(std::tuple(true, Victims::kBoth, 0)),
                         [](const auto&) { return "Sharded"; });

}  // namespace
}  // namespace paramshard::test
