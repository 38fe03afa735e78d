// Three daemons on machines of their own. Two cannot reach each other, but both reach node 0.
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "tests/faults/training.h"
#include "tests/net/machines.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kNodes = 3;
constexpr absl::Duration kTimeout = absl::Minutes(2);
// Numbers of rank 0's board: the commit that it stands before, and the last commit that it may make.
constexpr int kStandsAt = 0, kMayMake = 1;
// First of the commits that rank 0 stands before.
constexpr int64_t kFirstStand = 3;
constexpr int64_t kCommits = 12;

class BadLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Machines> machines = Machines::Make(kNodes);
    const absl::Status able = machines.ok() ? machines->CheckLosesAndThrottles() : machines.status();
    if (absl::IsFailedPrecondition(able)) GTEST_SKIP() << able.message();
    ASSERT_OK(able);
    machines_.emplace(*std::move(machines));
  }

  void Start(const std::vector<std::string>& flags_of_node0 = {}) {
    for (int node = 0; node < kNodes; ++node) {
      std::vector<std::string> flags = {DeviceFlagOf(node),
                                        absl::StrCat("--node=", node),
                                        absl::StrCat("--nodes=", kNodes),
                                        "--keeper=off",
                                        "--step-timeout=10m",
                                        absl::StrCat("--cluster-address=", Machines::Address(0), ":7777"),
                                        "--insecure=on",
                                        "--trusted-data-network=on",
                                        absl::StrCat("--data-address=", Machines::Address(node))};
      if (node == 0) flags.insert(flags.end(), flags_of_node0.begin(), flags_of_node0.end());
      daemons_[node].emplace(
          DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags, machines_->Of(node)));
    }
    for (auto& daemon : daemons_) ASSERT_OK(daemon->AwaitReady());
  }
  nlohmann::json Ctl(int node, const std::string& words) const {
    const absl::StatusOr<std::string> text =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets_[node].path(), " -o json ", words));
    EXPECT_OK(text.status());
    return nlohmann::json::parse(text.value_or("{}"), nullptr, /*allow_exceptions=*/false);
  }
  nlohmann::json ModelAt(int node) const {
    const nlohmann::json models = Ctl(node, "models").value("models", nlohmann::json::array());
    return models.empty() ? nlohmann::json::object() : models[0];
  }
  std::string StateHash(int node) const { return Ctl(node, "verify m")["summary"]["stateHash"]; }
  void Await(const std::string& what, const std::function<bool()>& is_so) const {
    const absl::StatusOr<bool> so = Poll({.timeout = kTimeout}, [&]() -> absl::StatusOr<bool> { return is_so(); });
    EXPECT_TRUE(so.value_or(false)) << what;
  }

  // Starts elastic trainers of all nodes, which come again for as long as daemons say so. Rank 0 stands before commits.
  void StartTrainers() {
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers_.push_back(ChildProcess::Run([this, rank](Board& board) {
        Training training{.socket_dir = sockets_[rank].path(), .model = "m", .rank = rank, .commits = kCommits};
        training.elastic = true;
        training.at = [&](Point at, int64_t commit) {
          if (rank != 0 || at != Point::kPushed || commit < kFirstStand) return;
          if (board.numbers[kMayMake] < commit) Reach(board, kStandsAt, static_cast<uint32_t>(commit));
          (void)Poll({.timeout = kTimeout},
                     [&]() -> absl::StatusOr<bool> { return board.numbers[kMayMake] >= commit; });
        };
        absl::Status status = absl::UnavailableError("not yet");
        for (const absl::Time end = absl::Now() + 2 * kTimeout; absl::IsUnavailable(status) && absl::Now() < end;) {
          status = test::Train(training);
        }
        return status;
      }));
    }
  }
  void LetMake(int64_t commit) { Reach(trainers_[0].board(), kMayMake, static_cast<uint32_t>(commit)); }
  // Returns the number of absent nodes from node 0's metrics; -1 if no epoch runs.
  int AbsentFromEpoch() const {
    const std::string page = Ctl(0, "metrics")["text"];
    const std::string begin = "\nparamshard_epoch_absent_nodes{model=\"m\"} ";
    const size_t at = page.find(begin);
    return at == page.npos ? -1 : std::stoi(page.substr(at + begin.size()));
  }
  bool IsWhole() const { return ModelAt(0).value("running", false) && ModelAt(0)["activeNodes"].empty(); }

  std::optional<Machines> machines_;
  TemporaryDirectory sockets_[kNodes];
  std::optional<DaemonProcess> daemons_[kNodes];
  std::vector<ChildProcess> trainers_;
};

TEST_F(BadLinkTest, TheTrainingGoesOnWithTwoAndWithThreeWhenTheLinkIsBack) {
  ASSERT_NO_FATAL_FAILURE(Start({"--min-replicas=2", "--replica-grace=500ms"}));
  StartTrainers();
  ASSERT_TRUE(trainers_[0].AwaitNumber(kStandsAt, kFirstStand, kTimeout));
  ASSERT_OK(machines_->Sever(1, 2));
  LetMake(kFirstStand);

  // The step ends long before the step timeout.
  ASSERT_TRUE(trainers_[0].AwaitNumber(kStandsAt, kFirstStand + 1, kTimeout));
  const nlohmann::json left = ModelAt(0);
  EXPECT_EQ(left["activeNodes"], nlohmann::json({0, 1}));
  EXPECT_EQ(AbsentFromEpoch(), 1);
  EXPECT_THAT(left["lastEnd"].get<std::string>(),
              AllOf(HasSubstr("node 1 (10.9.0.11) and node 2 (10.9.0.12)"), HasSubstr("without node 2")));
  // While node 2 is left out, which is for a stay.
  const nlohmann::json version = Ctl(0, "version");
  if (!version["leftOutNodes"].empty()) {
    EXPECT_THAT(version["badLinks"], ElementsAre("node 1 (10.9.0.11) and node 2 (10.9.0.12)"));
  }
  EXPECT_THAT(ModelAt(2)["lastEnd"].get<std::string>(), HasSubstr("10.9.0.1"));

  ASSERT_OK(machines_->Mend(1, 2));
  int64_t commit = kFirstStand + 1;
  for (; commit < kCommits && !IsWhole(); ++commit) {
    Await("node 2 is not left out any more", [&] { return Ctl(0, "version")["leftOutNodes"].empty(); });
    Await("its trainer is there", [&] { return ModelAt(2).value("attachedRanks", 0) == 1; });
    LetMake(commit);
    ASSERT_TRUE(trainers_[0].AwaitNumber(kStandsAt, static_cast<uint32_t>(commit + 1), kTimeout));
  }
  EXPECT_TRUE(IsWhole());
  EXPECT_EQ(AbsentFromEpoch(), 0);
  LetMake(kCommits);
  for (ChildProcess& trainer : trainers_) EXPECT_OK(trainer.Await(kTimeout));
  EXPECT_EQ(StateHash(1), StateHash(0));
  EXPECT_EQ(StateHash(2), StateHash(0));
}

TEST_F(BadLinkTest, WithoutPermissionTrainersAreToldWhichTwoAddresses) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK(machines_->Sever(2, 1));
  StartTrainers();
  for (int node = 0; node < kNodes; ++node) {
    Await(absl::StrCat("an end at node ", node), [&] {
      const std::string end = ModelAt(node).value("lastEnd", "");
      return end.find("10.9.0.11") != std::string::npos && end.find("10.9.0.12") != std::string::npos;
    });
  }
  ASSERT_OK(machines_->Mend(2, 1));
  LetMake(kCommits);
  for (ChildProcess& trainer : trainers_) EXPECT_OK(trainer.Await(kTimeout));
  EXPECT_EQ(StateHash(2), StateHash(0));
  EXPECT_TRUE(Ctl(0, "version")["badLinks"].empty());
}

}  // namespace
}  // namespace paramshard::test
