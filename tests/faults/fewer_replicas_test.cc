// A world of three replicas that may go on with two: a daemon is killed with its keeper while a step is under way, the
// others go on without it, and take it in again when it is back. The training ends in the bytes of one whose worlds
// were as large from the beginning, and went over into each other by checkpoints.

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/shared_memory/futex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(120);
constexpr char kModel[] = "kept";
constexpr int kNodes = 3;
// The step in which the daemon is killed, the first one that waits for it to be back, and the last one.
constexpr int64_t kKilled = 4;
constexpr int64_t kAwaited = 8;
constexpr int64_t kLast = 12;
// Numbers of a board. The numbers between kKills and kIsBack hold, by commit, the ranks that took part.
constexpr int kKills = 0;
constexpr int kIsBack = 14;
constexpr int kBackwards = 15;  // an answered commit was begun again

// Daemons of one rank each, which save into one folder.
class ReplicaWorld {
 public:
  ReplicaWorld(int nodes, std::string saves, std::vector<std::string> flags)
      : nodes_(nodes), saves_(std::move(saves)), flags_(std::move(flags)), sockets_(nodes), daemons_(nodes) {
    for (int node = 0; node < nodes_; ++node) Spawn(node);
  }

  void Spawn(int node) {
    daemons_[node].reset();
    std::vector<std::string> flags = DeviceFlags(1, node);
    flags.insert(flags.end(),
                 {absl::StrCat("--node=", node), absl::StrCat("--nodes=", nodes_), address_, "--save-dir=" + saves_});
    flags.insert(flags.end(), flags_.begin(), flags_.end());
    daemons_[node].emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags));
  }
  absl::Status AwaitReady() {
    for (auto& daemon : daemons_) RETURN_IF_ERROR(daemon->AwaitReady());
    return absl::OkStatus();
  }
  DaemonProcess& daemon(int node) { return *daemons_[node]; }
  const std::string& sockets(int node) const { return sockets_[node].path(); }

  absl::StatusOr<nlohmann::json> Ctl(int node, const std::string& words) const {
    ASSIGN_OR_RETURN(
        const std::string output,
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets(node), " -o json ", words)));
    return nlohmann::json::parse(output);
  }
  absl::StatusOr<std::string> StateHash(int node) const {
    ASSIGN_OR_RETURN(const nlohmann::json verified, Ctl(node, absl::StrCat("verify ", kModel)));
    return verified["summary"]["stateHash"].get<std::string>();
  }
  // A trainer waits there for an epoch.
  bool IsAwaited(int node) const {
    const absl::StatusOr<nlohmann::json> models = Ctl(node, "models");
    return models.ok() && models->contains("models") && (*models)["models"].size() == 1 &&
           (*models)["models"][0].value("attachedRanks", 0) == 1;
  }

 private:
  const int nodes_;
  const std::string saves_;
  const std::vector<std::string> flags_;
  const std::string address_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  std::vector<TemporaryDirectory> sockets_;
  std::vector<std::optional<DaemonProcess>> daemons_;
};

// To a commit, attaching again for as long as that may help.
absl::Status TrainThrough(const Training& training) {
  ASSIGN_OR_RETURN(
      Client client,
      Client::Connect({.rank = training.rank, .socket_dir = training.socket_dir, .restart_timeout = kTimeout}));
  while (true) {
    const absl::Status status = TrainEpoch(client, training);
    if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return status;
  }
}

struct FewerCase {
  std::string name;
  int victim = 2;
  bool node0_restarts = false;  // its server, while the other one is away
};

class FewerReplicasTest : public testing::TestWithParam<FewerCase> {
 protected:
  void SetUp() override {
    if (DevicesUpTo(kNodes) < kNodes) GTEST_SKIP() << "needs three GPUs, got " << DevicesUpTo(kNodes);
  }

  ChildProcess Train(ReplicaWorld& world, int rank, bool kills) const {
    const pid_t victim = world.daemon(GetParam().victim).pid();
    return ChildProcess::Run([=, sockets = world.sockets(rank)](Board& board) -> absl::Status {
      int ranks = 0;
      int64_t answered = 0;
      Training training{.socket_dir = sockets, .model = kModel, .scaled = true, .rank = rank, .commits = kLast};
      training.opened = [&](const Model& model) { ranks = model.active_world_size(); };
      training.at = [&](Point at, int64_t commit) {
        if (at == Point::kStart && commit <= answered) board.numbers[kBackwards] = 1;
        if (at == Point::kStart && commit == kAwaited && rank != GetParam().victim) {
          while (board.numbers[kIsBack] == 0) wire::FutexWait(board.numbers[kIsBack], 0, kTimeout);
        }
        if (at == Point::kPushed && commit == kKilled && kills && board.numbers[kKills] == 0) {
          kill(victim, SIGKILL);
          Reach(board, kKills, 1);
        }
        if (at != Point::kCommitted) return;
        answered = commit;
        Reach(board, static_cast<int>(commit), ranks);
      };
      return TrainThrough(training);
    });
  }

  // The same by worlds of as many ranks, which go over into each other by checkpoints.
  absl::StatusOr<std::string> Replay(const std::vector<uint32_t>& ranks) const {
    TemporaryDirectory saves;
    std::string hash;
    for (size_t begin = 1; begin < ranks.size();) {
      size_t end = begin + 1;
      while (end < ranks.size() && ranks[end] == ranks[begin]) ++end;
      const int nodes = static_cast<int>(ranks[begin]);
      ReplicaWorld world(nodes, saves.path(), {"--keeper=off"});
      RETURN_IF_ERROR(world.AwaitReady());
      std::vector<ChildProcess> trainers;
      for (int node = 0; node < nodes; ++node) {
        Training training{.socket_dir = world.sockets(node),
                          .model = kModel,
                          .scaled = true,
                          .rank = RankOf(node, nodes),
                          .commits = static_cast<int64_t>(end) - 1};
        if (begin > 1) training.restore = "latest";
        trainers.push_back(ChildProcess::Run([=](Board&) { return TrainAs(node, training); }));
      }
      for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(trainer.Await(kTimeout));
      RETURN_IF_ERROR(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
      ASSIGN_OR_RETURN(hash, world.StateHash(0));
      begin = end;
    }
    return hash;
  }
  // Returns the rank whose gradients a node pushes: the others keep their gradients while one is away.
  int RankOf(int node, int nodes) const { return nodes < kNodes && node >= GetParam().victim ? node + 1 : node; }
  static absl::Status TrainAs(int node, const Training& training) {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = node, .socket_dir = training.socket_dir}));
    return TrainEpoch(client, training);
  }
};

class FewerReplicasWithoutTrainerTest : public FewerReplicasTest {};

TEST_P(FewerReplicasTest, GoOnAndTakeItInAgain) {
  const int victim = GetParam().victim;
  TemporaryDirectory saves;
  ReplicaWorld world(kNodes, saves.path(), {"--keeper=on", "--min-replicas=2", "--replica-grace=1s"});
  ASSERT_OK(world.AwaitReady());
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < kNodes; ++rank) trainers.push_back(Train(world, rank, rank == 0));
  ASSERT_TRUE(trainers[0].AwaitNumber(kKills, 1, kTimeout));
  ASSERT_OK(world.daemon(victim).AwaitExit(kTimeout).status());
  for (int rank = 0; rank < kNodes; ++rank) {
    if (rank == victim) continue;
    ASSERT_TRUE(trainers[rank].AwaitNumber(kAwaited - 1, 2, kTimeout)) << "they go on without it";
  }
  ASSERT_OK_AND_ASSIGN(const nlohmann::json models, world.Ctl(0, "models"));
  EXPECT_EQ(models["models"][0]["activeNodes"].size(), 2u) << models.dump(2);
  ASSERT_OK_AND_ASSIGN(const std::string saved, world.StateHash(0));
  ASSERT_OK(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status()) << "node 0 has all of the state";
  if (GetParam().node0_restarts) {
    ASSERT_OK_AND_ASSIGN(const nlohmann::json version, world.Ctl(0, "version"));
    kill(std::stoi(version["pid"].get<std::string>()), SIGKILL);
  }
  world.Spawn(victim);
  ASSERT_OK(world.daemon(victim).AwaitReady());
  const absl::Time deadline = absl::Now() + kTimeout;
  while (!world.IsAwaited(victim)) ASSERT_LT(absl::Now(), deadline) << "its trainer waits for an epoch";
  for (ChildProcess& trainer : trainers) Reach(trainer.board(), kIsBack, 1);
  for (ChildProcess& trainer : trainers) {
    ASSERT_OK(trainer.Await(kTimeout));
    EXPECT_EQ(trainer.board().numbers[kBackwards], 0u) << "no answered commit is made again";
    EXPECT_EQ(trainer.board().numbers[kLast], 3u);
  }
  std::vector<uint32_t> ranks(kLast + 1);
  for (int64_t commit = 1; commit <= kLast; ++commit) ranks[commit] = trainers[0].board().numbers[commit];
  ASSERT_OK_AND_ASSIGN(const std::string expected, Replay(ranks));
  for (int node = 0; node < kNodes; ++node) EXPECT_THAT(world.StateHash(node), IsOkAndHolds(expected));
  ASSERT_OK(world.Ctl(0, absl::StrCat("restore ", kModel, " ", kAwaited - 1)).status());
  for (int node = 0; node < kNodes; ++node) EXPECT_THAT(world.StateHash(node), IsOkAndHolds(saved));
  ASSERT_OK(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status()) << "all save together again";
}

// Its daemon is back, and its trainer is not.
TEST_P(FewerReplicasWithoutTrainerTest, HoldUpNoSaveAndNoStart) {
  const int victim = GetParam().victim;
  TemporaryDirectory saves, decisions;
  ReplicaWorld world(kNodes, saves.path(),
                     {"--keeper=on", "--min-replicas=2", "--replica-grace=1s", "--state-dir=" + decisions.path()});
  ASSERT_OK(world.AwaitReady());
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < kNodes; ++rank) {
    if (rank == victim) continue;
    trainers.push_back(Train(world, rank, rank == 0));
  }
  ChildProcess leaver = ChildProcess::Run([=, sockets = world.sockets(victim)](Board&) -> absl::Status {
    const absl::Status ended =
        TrainAs(victim, {.socket_dir = sockets, .model = kModel, .scaled = true, .rank = victim, .commits = kLast});
    return absl::IsUnavailable(ended) ? absl::OkStatus() : ended;
  });
  ASSERT_OK(leaver.Await(kTimeout)) << "it leaves with its daemon";
  for (ChildProcess& trainer : trainers) ASSERT_TRUE(trainer.AwaitNumber(kAwaited - 1, 2, kTimeout));
  world.Spawn(victim);
  ASSERT_OK(world.daemon(victim).AwaitReady());
  ASSERT_OK(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
  if (GetParam().node0_restarts) {
    ASSERT_OK_AND_ASSIGN(const nlohmann::json version, world.Ctl(0, "version"));
    kill(std::stoi(version["pid"].get<std::string>()), SIGKILL);
  }
  for (ChildProcess& trainer : trainers) Reach(trainer.board(), kIsBack, 1);
  for (ChildProcess& trainer : trainers) {
    ASSERT_OK(trainer.Await(kTimeout));
    EXPECT_EQ(trainer.board().numbers[kLast], 2u);
  }
  ASSERT_OK(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
}

class RestoreWithoutOneTest : public FewerReplicasTest {
 protected:
  static constexpr int kAway = 2;

  // Trains these nodes up to a commit. Gradients add up to the same sum for any number of nodes.
  static void TrainTo(const ReplicaWorld& world, const std::vector<int>& nodes, int64_t commit) {
    std::vector<ChildProcess> trainers;
    for (const int node : nodes) {
      const Training training{.socket_dir = world.sockets(node),
                              .model = kModel,
                              .scaled = true,
                              .rank = node,
                              .commits = commit,
                              .elastic = true};
      trainers.push_back(ChildProcess::Run([=](Board&) { return TrainThrough(training); }));
    }
    for (ChildProcess& trainer : trainers) ASSERT_OK(trainer.Await(kTimeout));
  }
  // Kills the server only: its keeper is stopped, and holds its memory.
  static void TakeAway(ReplicaWorld& world) {
    ASSERT_OK_AND_ASSIGN(const nlohmann::json version, world.Ctl(kAway, "version"));
    world.daemon(kAway).Pause();
    kill(std::stoi(version["pid"].get<std::string>()), SIGKILL);
    const absl::Time deadline = absl::Now() + kTimeout;
    while (true) {
      ASSERT_LT(absl::Now(), deadline) << "node 0 misses it";
      ASSERT_OK_AND_ASSIGN(
          const std::string metrics,
          OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", world.sockets(0), " metrics")));
      if (metrics.find("paramshard_world_nodes{state=\"present\"} 2\n") != std::string::npos) return;
    }
  }
  static void AwaitServer(const ReplicaWorld& world, int node) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (!world.Ctl(node, "models").ok()) ASSERT_LT(absl::Now(), deadline);
  }
};

// It counts further than all others then.
TEST_P(RestoreWithoutOneTest, IsNothingBesideWhatTheOthersHaveMadeOfIt) {
  TemporaryDirectory saves, decisions;
  ReplicaWorld world(kNodes, saves.path(),
                     {"--keeper=on", "--min-replicas=2", "--replica-grace=1s", "--state-dir=" + decisions.path()});
  ASSERT_OK(world.AwaitReady());
  ASSERT_NO_FATAL_FAILURE(TrainTo(world, {0, 1, 2}, kKilled));
  ASSERT_OK(world.Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
  ASSERT_NO_FATAL_FAILURE(TrainTo(world, {0, 1, 2}, kAwaited + 2));
  ASSERT_NO_FATAL_FAILURE(TakeAway(world));
  for (int restores = 0; restores < 2; ++restores) {
    ASSERT_OK(world.Ctl(0, absl::StrCat("restore ", kModel, " ", kKilled)).status());
  }
  if (GetParam().node0_restarts) {
    ASSERT_OK_AND_ASSIGN(const nlohmann::json version, world.Ctl(0, "version"));
    kill(std::stoi(version["pid"].get<std::string>()), SIGKILL);
    ASSERT_NO_FATAL_FAILURE(AwaitServer(world, 0));
  }
  ASSERT_NO_FATAL_FAILURE(TrainTo(world, {0, 1}, kKilled + 2));
  world.daemon(kAway).Signal(SIGCONT);
  ASSERT_NO_FATAL_FAILURE(AwaitServer(world, kAway));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json before, world.Ctl(kAway, "models"));
  EXPECT_EQ(before["models"][0].value("commitNumber", ""), absl::StrCat(kAwaited + 2)) << before.dump(2);
  ASSERT_NO_FATAL_FAILURE(TrainTo(world, {0, 1, 2}, kLast));

  TemporaryDirectory others;
  ReplicaWorld uninterrupted(kNodes, others.path(), {"--keeper=off"});
  ASSERT_OK(uninterrupted.AwaitReady());
  ASSERT_NO_FATAL_FAILURE(TrainTo(uninterrupted, {0, 1, 2}, kLast));
  ASSERT_OK_AND_ASSIGN(const std::string expected, uninterrupted.StateHash(0));
  for (int node = 0; node < kNodes; ++node) EXPECT_THAT(world.StateHash(node), IsOkAndHolds(expected));
}

INSTANTIATE_TEST_SUITE_P(, RestoreWithoutOneTest,
                         testing::Values(FewerCase{"OnItsReturn", 2}, FewerCase{"AndARestartOfNode0", 2, true}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(, FewerReplicasWithoutTrainerTest,
                         testing::Values(FewerCase{"WhereOthersTrain", 2}, FewerCase{"WhileNode0IsRestarted", 2, true}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(, FewerReplicasTest,
                         testing::Values(FewerCase{"TheLast", 2}, FewerCase{"TheSecond", 1},
                                         FewerCase{"WhileNode0IsRestarted", 2, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paramshard::test
