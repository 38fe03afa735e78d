// A daemon of two or three is killed with its keeper and started again empty. If it held the only copy of a part of the
// model, all daemons roll back to the step that was saved last, and trainers are told so once. If another daemon has a
// replica, the replica heals it, and no step is repeated. The training ends in the bytes of an undisturbed training.

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/shared_memory/file_descriptor.h"
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

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(120);
constexpr int kMostNodes = 3;
constexpr char kModel[] = "kept";
constexpr int64_t kSaved = 3;
// The step in which the daemon is killed: the commit before is answered.
constexpr int64_t kKilled = 6;
constexpr int64_t kLast = 8;
// Numbers of a board.
constexpr int kKills = 0;
constexpr int kAnswered = 1;    // the last commit that was answered
constexpr int kTold = 2;        // how often OpenModel has said that commits are lost
constexpr int kBeganAgain = 3;  // the first commit that was answered and begun again

struct RollbackCase {
  std::string name;
  bool sharded = false;
  int victim = 0;
  std::vector<std::string> flags = {};
  int nodes = 2;
  // Treat daemons as if on machines of their own: they, and NCCL, connect over this machine's network.
  bool apart = false;
};

// A process that is killed in the middle of a training, and a pidfd of the server that ends with it. The server's other
// threads could finish the training before it has ended.
struct Death {
  pid_t killed = -1;
  int server = -1;
  Point at = Point::kStart;  // of the commit kKilled
};

absl::Status AwaitEnd(int pidfd) {
  pollfd gone{.fd = pidfd, .events = POLLIN, .revents = 0};
  if (poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))) == 1) return absl::OkStatus();
  return absl::DeadlineExceededError("timed out waiting for a server to end");
}

class RollbackTest : public testing::TestWithParam<RollbackCase> {
 protected:
  void SetUp() override {
    const int devices = DevicesUpTo(nodes());
    if (devices < nodes()) GTEST_SKIP() << "needs " << nodes() << " GPUs, got " << devices;
    if (!GetParam().apart) return;
    const absl::StatusOr<std::string> addresses = OutputOf("hostname --all-ip-addresses");
    std::istringstream(addresses.value_or("")) >> data_address_;
    if (data_address_.empty()) GTEST_SKIP() << "needs an address of this machine besides loopback";
  }

  static int nodes() { return GetParam().nodes; }

  std::vector<std::string> FlagsOf(int node) const {
    std::vector<std::string> flags = DeviceFlags(1, node);
    flags.insert(flags.end(), {absl::StrCat("--node=", node), absl::StrCat("--nodes=", nodes()), address_,
                               "--keeper=on", "--save-dir=" + saves_.path()});
    flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
    if (!state_flag_.empty()) flags.push_back(state_flag_);
    if (GetParam().apart) {
      flags.insert(flags.end(), {"--data-address=" + data_address_, "--trusted-data-network=on"});
    }
    return flags;
  }
  void Spawn(int node) {
    daemons_[node].reset();
    Surroundings surroundings;
    if (GetParam().apart) surroundings.environment = {{"NCCL_HOSTID", absl::StrCat("machine", node)}};
    daemons_[node].emplace(
        DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), FlagsOf(node), surroundings));
  }
  void Start() {
    for (int node = 0; node < nodes(); ++node) Spawn(node);
    for (int node = 0; node < nodes(); ++node) ASSERT_OK(daemons_[node]->AwaitReady());
  }
  absl::StatusOr<nlohmann::json> Ctl(int node, const std::string& words) const {
    ASSIGN_OR_RETURN(
        const std::string output,
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[node].path(), " -o json ", words)));
    return nlohmann::json::parse(output);
  }
  std::vector<std::string> StateHashes() const {
    std::vector<std::string> hashes;
    for (int node = 0; node < nodes(); ++node) {
      const absl::StatusOr<nlohmann::json> verified = Ctl(node, absl::StrCat("verify ", kModel));
      EXPECT_OK(verified.status());
      hashes.push_back(verified.ok() ? (*verified)["summary"]["stateHash"].get<std::string>() : "");
    }
    return hashes;
  }

  // A rank's trainer to a commit, with one client for all of it.
  ChildProcess Train(int rank, int64_t commits, Death death = {}) const {
    return ChildProcess::Run([=, this](Board& board) -> absl::Status {
      Training training{.socket_dir = sockets_[rank].path(), .model = kModel, .scaled = true, .rank = rank};
      if (GetParam().sharded) training.shard_size = nodes();
      training.commits = commits;
      training.at = [&](Point at, int64_t commit) {
        if (at == Point::kCommitted) board.numbers[kAnswered] = commit;
        const bool begins = at == Point::kStart;
        if (begins && commit <= board.numbers[kAnswered] && board.numbers[kBeganAgain] == 0) {
          board.numbers[kBeganAgain] = commit;
        }
        if (at != death.at || commit != kKilled || death.killed == -1 || board.numbers[kKills] > 0) return;
        kill(death.killed, SIGKILL);
        if (AwaitEnd(death.server).ok()) Reach(board, kKills, 1);
      };
      ASSIGN_OR_RETURN(Client client,
                       Client::Connect({.rank = rank, .socket_dir = training.socket_dir, .restart_timeout = kTimeout}));
      return TrainThrough(client, training, board);
    });
  }
  // Attaches again for as long as that may help, as docs/reference/errors.md says.
  static absl::Status TrainThrough(Client& client, const Training& training, Board& board) {
    while (true) {
      const absl::Status status = TrainEpoch(client, training);
      if (absl::IsDataLoss(status)) {
        if (status.message().find("which was answered, to commit 3: ") == std::string::npos) return status;
        ++board.numbers[kTold];
      } else if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) {
        return status;
      }
    }
  }
  void TrainAll(int64_t commits) const {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < nodes(); ++rank) trainers.push_back(Train(rank, commits));
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await(kTimeout));
  }
  // Saves a checkpoint of the step, and computes the result of a training from there; leaves the model at that step.
  void StartSaved() {
    ASSERT_NO_FATAL_FAILURE(Start());
    TrainAll(kSaved);
    ASSERT_OK(Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
    TrainAll(kLast);
    expected_ = StateHashes();
    ASSERT_OK(Ctl(0, absl::StrCat("restore ", kModel, " ", kSaved)).status());
  }
  struct Server {
    pid_t pid = -1;
    wire::FileDescriptor pidfd;
  };
  absl::StatusOr<Server> ServerOf(int node) const {
    ASSIGN_OR_RETURN(const nlohmann::json version, Ctl(node, "version"));
    const pid_t pid = std::stoi(version["pid"].get<std::string>());
    wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) return absl::ErrnoToStatus(errno, "pidfd_open");
    return Server{.pid = pid, .pidfd = std::move(pidfd)};
  }
  // To the end. `killer`: the rank whose trainer brings the death.
  std::vector<ChildProcess> TrainUnder(Death death, int killer = 0) const {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < nodes(); ++rank) trainers.push_back(Train(rank, kLast, rank == killer ? death : Death()));
    return trainers;
  }

  void ExpectToContinue(std::vector<ChildProcess> trainers) const {
    for (ChildProcess& trainer : trainers) {
      EXPECT_OK(trainer.Await(kTimeout));
      EXPECT_EQ(trainer.board().numbers[kTold], 0);
      EXPECT_EQ(trainer.board().numbers[kBeganAgain], 0) << "no answered commit is made again";
      EXPECT_EQ(trainer.board().numbers[kAnswered], kLast);
    }
    EXPECT_EQ(StateHashes(), expected_);
  }

  const std::string address_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  TemporaryDirectory saves_;
  TemporaryDirectory sockets_[kMostNodes];
  std::optional<DaemonProcess> daemons_[kMostNodes];
  std::vector<std::string> expected_;
  std::string state_flag_;
  std::string data_address_;
};

TEST_P(RollbackTest, EndsInTheBytesOfARunThatWasNotInterrupted) {
  const int victim = GetParam().victim;
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(victim));
  std::vector<ChildProcess> trainers = TrainUnder({.killed = daemons_[victim]->pid(), .server = server.pidfd.get()});
  ASSERT_TRUE(trainers[0].AwaitNumber(kKills, 1, kTimeout));
  ASSERT_OK(daemons_[victim]->AwaitExit(kTimeout).status());
  Spawn(victim);
  for (ChildProcess& trainer : trainers) {
    EXPECT_OK(trainer.Await(kTimeout));
    EXPECT_EQ(trainer.board().numbers[kTold], 1) << "all were told, and once";
    EXPECT_EQ(trainer.board().numbers[kBeganAgain], kSaved + 1);
    EXPECT_EQ(trainer.board().numbers[kAnswered], kLast);
  }
  EXPECT_EQ(StateHashes(), expected_);
  for (int node = 0; node < nodes(); ++node) {
    // An empty node 0 with --restore creates the model as ever.
    if (node == 0 && victim == 0 && !GetParam().flags.empty()) continue;
    ASSERT_OK_AND_ASSIGN(const nlohmann::json models, Ctl(node, "models"));
    ASSERT_EQ(models["models"].size(), 1u);
    const nlohmann::json rollback = models["models"][0].value("rollback", nlohmann::json::object());
    EXPECT_EQ(rollback.value("commitNumber", ""), "3") << models.dump(2);
    // The other nodes may not know the outcome of the last commit when node 0 is killed.
    const std::string from = rollback.value("fromCommitNumber", "0");
    if (node == victim) {
      EXPECT_EQ(from, "0");
    } else {
      EXPECT_THAT(from, AnyOf("4", "5"));
    }
  }
}

TEST_P(RollbackTest, AServerThatItsKeeperStartsAgainTakesNobodyBack) {
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(GetParam().victim));
  ExpectToContinue(TrainUnder({.killed = server.pid, .server = server.pidfd.get()}));
}

class LostReplicaTest : public RollbackTest {};

TEST_P(LostReplicaTest, EndsInTheBytesOfARunThatWasNotInterrupted) {
  const int victim = GetParam().victim;
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(victim));
  // The one that stays is at no commit: it knows of the last one, and is in no doubt when node 0 is killed.
  const int killer = 1 - victim;
  std::vector<ChildProcess> trainers =
      TrainUnder({.killed = daemons_[victim]->pid(), .server = server.pidfd.get()}, killer);
  ASSERT_TRUE(trainers[killer].AwaitNumber(kKills, 1, kTimeout));
  ASSERT_OK(daemons_[victim]->AwaitExit(kTimeout).status());
  Spawn(victim);
  ExpectToContinue(std::move(trainers));
  EXPECT_THAT(OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[victim].path(), " metrics")),
              IsOkAndHolds(HasSubstr("paramshard_heal_seconds_count 1\n")));
}

TEST_P(LostReplicaTest, AServerThatItsKeeperStartsAgainGoesOnByItself) {
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(GetParam().victim));
  ExpectToContinue(TrainUnder({.killed = server.pid, .server = server.pidfd.get()}));
}

// An import into one daemon only, which then has a higher version than the other.
class HealOrderTest : public RollbackTest {
 protected:
  static absl::Status Import(int node, const std::string& sockets) {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = node, .socket_dir = sockets}));
    std::vector<ImportTensor> tensors;
    std::vector<std::vector<float>> values;
    const ModelSpec spec = SmallModel(kModel, 1, /*scaled=*/true);
    for (const UnitSpec& unit : spec.units) {
      for (const ParameterSpec& parameter : unit.parameters) {
        int64_t elements = 1;
        for (const int64_t extent : parameter.shape) elements *= extent;
        values.emplace_back(elements, 0.5f);
        tensors.push_back({.parameter = parameter.name, .values = values.back()});
      }
    }
    return client.Import(kModel, tensors, {.commit_number = kLast + 1, .version = kLast + 1});
  }
  // In a process of its own: this one forks.
  absl::Status ImportAlone(int node) const {
    ChildProcess importer =
        ChildProcess::Run([node, sockets = sockets_[node].path()](Board&) { return Import(node, sockets); });
    return importer.Await(kTimeout);
  }
  absl::StatusOr<std::string> Heal(int asked, int from) const {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[asked].path(), " heal ", kModel,
                                 " --from=", from, " 2>&1 || true"));
  }
};

TEST_P(HealOrderTest, TheTrainingGoesOnFromTheNodeThatIsRight) {
  const int victim = GetParam().victim;
  const int right = 1 - victim;
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  EXPECT_THAT(Heal(0, right), IsOkAndHolds(HasSubstr("nothing to do: all known nodes have the same state")));
  ASSERT_OK(ImportAlone(victim));
  ChildProcess trainers[] = {Train(0, kLast), Train(1, kLast)};
  for (ChildProcess& trainer : trainers) {
    EXPECT_THAT(trainer.Await(kTimeout), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                  AllOf(HasSubstr("(commit 3)"), HasSubstr("(commit 9)"),
                                                        HasSubstr("`paramshardctl heal kept --from=NODE` at node 0"))));
  }
  EXPECT_THAT(Heal(1, right), IsOkAndHolds(HasSubstr("want a call to node 0")));
  EXPECT_THAT(Heal(0, right), IsOkAndHolds(AllOf(HasSubstr("is right"), HasSubstr("is given up"))));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json models, Ctl(0, "models"));
  EXPECT_EQ(models["models"][0].value("healFromNode", -1), right) << models.dump(2);
  ExpectToContinue(TrainUnder({}));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json after, Ctl(0, "models"));
  EXPECT_FALSE(after["models"][0].contains("healFromNode")) << after.dump(2);
}

INSTANTIATE_TEST_SUITE_P(, HealOrderTest,
                         testing::Values(RollbackCase{"Node0GivesWay", false, 0},
                                         RollbackCase{"Node1GivesWay", false, 1}),
                         [](const auto& info) { return info.param.name; });

// The other daemon has voted on the commit, has not voted, or waits for its outcome.
class KeptDecisionsTest : public LostReplicaTest {
 protected:
  // Calls `between` while there is no node 0, before the next one starts.
  void KillNode0(
      Point at, int killer, const std::function<void()>& between = [] {}) {
    ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(0));
    std::vector<ChildProcess> trainers =
        TrainUnder({.killed = daemons_[0]->pid(), .server = server.pidfd.get(), .at = at}, killer);
    ASSERT_TRUE(trainers[killer].AwaitNumber(kKills, 1, kTimeout));
    ASSERT_OK(daemons_[0]->AwaitExit(kTimeout).status());
    between();
    Spawn(0);
    ExpectToContinue(std::move(trainers));
  }

  TemporaryDirectory state_;
};

TEST_P(KeptDecisionsTest, ANode0WithoutItsMemoryAnswersWhatItHadDecided) {
  state_flag_ = "--state-dir=" + state_.path();
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  for (const Point point : {Point::kStart, Point::kFilling, Point::kAllPushed, Point::kCommitting, Point::kCommitted}) {
    for (int killer = 0; killer < nodes(); ++killer) {
      SCOPED_TRACE(absl::StrCat("point ", static_cast<int>(point), " of rank ", killer));
      ASSERT_NO_FATAL_FAILURE(KillNode0(point, killer));
      ASSERT_OK(Ctl(0, absl::StrCat("restore ", kModel, " ", kSaved)).status());
    }
  }
}

// The other daemon, which knows of the last commit, is in no doubt.
TEST_P(KeptDecisionsTest, AnOlderCopyOfTheFolderTakesNothingBack) {
  namespace fs = std::filesystem;
  state_flag_ = "--state-dir=" + state_.path();
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  const TemporaryDirectory older;
  fs::copy(state_.path(), older.path(), fs::copy_options::recursive);
  const auto put_back = [&] {
    for (const fs::directory_entry& entry : fs::directory_iterator(state_.path())) fs::remove_all(entry.path());
    fs::copy(older.path(), state_.path(), fs::copy_options::recursive);
  };
  for (const Point point : {Point::kStart, Point::kFilling, Point::kCommitted}) {
    SCOPED_TRACE(absl::StrCat("point ", static_cast<int>(point)));
    ASSERT_NO_FATAL_FAILURE(KillNode0(point, /*killer=*/1, put_back));
    ASSERT_OK(Ctl(0, absl::StrCat("restore ", kModel, " ", kSaved)).status());
  }
}

// It is started while the first one has no server: the keeper, which stands still, holds the folder.
TEST_P(KeptDecisionsTest, ASecondNode0DoesNotGetBetweenTwoServers) {
  state_flag_ = "--state-dir=" + state_.path();
  ASSERT_NO_FATAL_FAILURE(StartSaved());
  ASSERT_OK_AND_ASSIGN(const Server server, ServerOf(0));
  daemons_[0]->Pause();
  kill(server.pid, SIGKILL);
  ASSERT_OK(AwaitEnd(server.pidfd.get()));
  const TemporaryDirectory others;
  DaemonProcess second = DaemonProcess::Spawn(Program(PARAMSHARDD), others.path(), FlagsOf(0));
  EXPECT_THAT(second.AwaitExit(kTimeout), IsOkAndHolds(3));
  daemons_[0]->Signal(SIGCONT);
  ExpectToContinue(TrainUnder({}));
}

INSTANTIATE_TEST_SUITE_P(, KeptDecisionsTest, testing::Values(RollbackCase{"Node0", false, 0}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(, LostReplicaTest,
                         testing::Values(RollbackCase{"Node0", false, 0}, RollbackCase{"Node1", false, 1},
                                         RollbackCase{"Node1Latest", false, 1, {"--restore=latest"}},
                                         RollbackCase{"Node0Apart", false, 0, {}, 2, true},
                                         RollbackCase{"Node1Apart", false, 1, {}, 2, true}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(, RollbackTest,
                         testing::Values(RollbackCase{"ShardedNode0", true, 0}, RollbackCase{"ShardedNode1", true, 1},
                                         RollbackCase{"ShardedNode0Latest", true, 0, {"--restore=latest"}},
                                         RollbackCase{"ShardedNode1Latest", true, 1, {"--restore=latest"}},
                                         RollbackCase{"ShardedNode0Of3", true, 0, {}, 3},
                                         RollbackCase{"ShardedNode2Of3", true, 2, {}, 3},
                                         RollbackCase{"ShardedNode1Apart", true, 1, {}, 2, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paramshard::test
