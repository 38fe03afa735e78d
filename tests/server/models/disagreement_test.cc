// Daemons of one world whose trainers do not issue the same commands.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kA = 0;
constexpr int kB = 1;

struct Case {
  const char* name;
  std::vector<int> device_counts;
  int shard_size;
};

// The trainers of node 1 send other commands than the other nodes' trainers.
class DisagreementTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    v1::ModelSpec spec = MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {64, 32})}),
                                        MakeUnit("b", {MakeParameter("b.w", {64, 32}), MakeParameter("b.b", {32})})});
    spec.set_shard_size(GetParam().shard_size);
    daemons_.Create(spec);
    daemons_.Attach();
  }

  static Daemons::Options Options() {
    Daemons::Options options;
    options.vote_wait = absl::Milliseconds(20);
    return options;
  }

  int node(int rank) const {
    int node = 0;
    for (int first = GetParam().device_counts[0]; rank >= first; first += GetParam().device_counts[++node]) {
    }
    return node;
  }
  FakeTrainer& trainer(int rank) { return daemons_.trainer(rank); }

  // All trainers hear that ranks differ, in these words, and nothing was applied.
  void ExpectEnded(const testing::Matcher<std::string>& why) {
    for (int rank = 0; rank < daemons_.ranks(); ++rank) {
      const EpochEndInfo* const ended = trainer(rank).AwaitEnded();
      ASSERT_NE(ended, nullptr);
      EXPECT_EQ(ended->why.code(), absl::StatusCode::kFailedPrecondition) << ended->why;
      EXPECT_THAT(std::string(ended->why.message()), why) << "rank " << rank;
      EXPECT_EQ(ended->numbers.commit_number, 0);
    }
    daemons_.Attach();
    daemons_.Push(kA, [](int) { return std::vector<float>(64 * 32, 1.0f); });
    EXPECT_EQ(daemons_.Commit().skipped, 0u) << "the next epoch works";
  }

  Daemons daemons_{GetParam().device_counts, Options()};
};

// Inside a group engines compare what they move: only replicas come as far as the vote.
class ReplicasDisagreementTest : public DisagreementTest {};

const Case kReplicas = {.name = "Replicas", .device_counts = {2, 2}, .shard_size = 2};
const Case kThreeReplicas = {.name = "ThreeReplicas", .device_counts = {1, 1, 1}, .shard_size = 1};
const Case kOneGroup = {.name = "OneGroup", .device_counts = {1, 2}, .shard_size = 3};

std::string CaseName(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Worlds, DisagreementTest, testing::Values(kReplicas, kThreeReplicas, kOneGroup), CaseName);
INSTANTIATE_TEST_SUITE_P(Worlds, ReplicasDisagreementTest, testing::Values(kReplicas, kThreeReplicas), CaseName);

TEST_P(ReplicasDisagreementTest, GathersThatDifferAreNamedAtTheCommit) {
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    const int64_t number = trainer(rank).Gather(node(rank) == 1 ? kB : kA, 0);
    trainer(rank).Release(0, number);
    trainer(rank).Commit(1, absl::StrCat("state of ", rank));
  }
  ExpectEnded(AllOf(HasSubstr("command 1: rank "), HasSubstr("sent gather a forward into slot 0"),
                    HasSubstr("sent gather b forward into slot 0")));
}

TEST_P(ReplicasDisagreementTest, OnlyWhatFollowsTheLastCommitIsCompared) {
  daemons_.Push(kA, [](int) { return std::vector<float>(64 * 32, 1.0f); });
  ASSERT_EQ(daemons_.Commit().skipped, 0u);
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    if (node(rank) == 1) trainer(rank).Discard();
    trainer(rank).Commit(2);
  }
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    const EpochEndInfo* const ended = trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_THAT(std::string(ended->why.message()),
                AllOf(HasSubstr("command 3: rank "), HasSubstr("sent commit 2"), HasSubstr("sent discard")));
    EXPECT_EQ(ended->numbers.commit_number, 1);
  }
}

TEST_P(DisagreementTest, HyperParametersThatDifferAreNamed) {
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    v1::Command commit = CommitCommand(trainer(rank).next_command(), 1, "");
    if (node(rank) == 1) commit.mutable_commit()->mutable_groups(0)->set_learning_rate(0.25f);
    trainer(rank).Send(commit);
  }
  ExpectEnded(AllOf(HasSubstr("command 1: rank "), HasSubstr("sent commit 1 with learning_rate 0.100000001"),
                    HasSubstr("sent commit 1 with learning_rate 0.25")));
}

// It waits for bytes of ranks that wait for its vote.
TEST_P(DisagreementTest, APushInThePlaceOfACommitIsNamedWhileBothWait) {
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    node(rank) == 1 ? trainer(rank).Push(kA, 0) : trainer(rank).Commit(1);
  }
  ExpectEnded(
      AllOf(HasSubstr("command 1: rank "), HasSubstr("sent push a from gradient slot 0"), HasSubstr("sent commit 1")));
}

// The commands that they have are the same ones: no trainer is told that they differ.
TEST_P(DisagreementTest, ADaemonThatIsLateIsWaitedFor) {
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    if (node(rank) != 1) trainer(rank).Commit(1);
  }
  ASSERT_TRUE(daemons_.cluster(1).AwaitQuestions(3));
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    if (node(rank) == 1) trainer(rank).Commit(1);
  }
  for (int rank = 0; rank < daemons_.ranks(); ++rank) {
    EXPECT_TRUE(trainer(rank).AwaitCommitted(1).has_value()) << "rank " << rank;
  }
}

}  // namespace
}  // namespace paramshard::server
