// Trainers that detach in a world of several daemons: what all ranks have sent is carried out and answered everywhere,
// and the epoch ends with a command that some rank will not send, or with the last rank.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr int kA = 0;
constexpr int kB = 1;

struct Case {
  std::string name;
  std::vector<int> device_counts;
  int shard_size = 0;
};

class DeparturesTest : public testing::TestWithParam<Case> {
 protected:
  DeparturesTest() {
    v1::ModelSpec spec = MakeSpec(
        "m", {MakeUnit("a", {MakeParameter("a.w", {64, 32})}), MakeUnit("b", {MakeParameter("b.w", {64, 32})})});
    spec.set_shard_size(GetParam().shard_size);
    daemons_.Create(spec);
    daemons_.Attach();
  }

  FakeTrainer& trainer(int rank) { return daemons_.trainer(rank); }
  bool is_one_daemon() const { return daemons_.nodes() == 1; }
  int last() const { return daemons_.ranks() - 1; }
  bool Runs() {
    for (int node = 0; node < daemons_.nodes(); ++node) {
      if (!daemons_.model(node).trainers().activity().running) return false;
    }
    return true;
  }
  // The rank goes, and has heard that it may.
  void Detach(int rank) {
    ASSERT_OK(trainer(rank).Detach());
    const EpochEndInfo* const ended = trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_THAT(ended->why.message(), HasSubstr(absl::StrCat("rank ", rank, ": process ")));
    trainer(rank).Leave(absl::AbortedError("its process has gone"));
  }
  void ExpectEnded(int rank, const std::string& message) {
    const EpochEndInfo* const ended = trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kAborted) << ended->why.message();
    EXPECT_THAT(ended->why.message(), HasSubstr(message));
  }
  void ExpectNextEpochWorks() {
    daemons_.Attach();
    daemons_.Push(kA, [](int) { return std::vector<float>(64 * 32, 1.0f); });
    EXPECT_EQ(daemons_.Commit().skipped, 0u);
  }

  Daemons daemons_{GetParam().device_counts};
};

INSTANTIATE_TEST_SUITE_P(Worlds, DeparturesTest,
                         testing::Values(Case{.name = "OneDaemon", .device_counts = {3}, .shard_size = 3},
                                         Case{.name = "OneGroup", .device_counts = {1, 1}, .shard_size = 2},
                                         Case{.name = "Replicas", .device_counts = {2, 2}, .shard_size = 2},
                                         Case{.name = "ThreeDaemons", .device_counts = {1, 2, 1}, .shard_size = 4}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST_P(DeparturesTest, TheLastGatherOfOthersIsCarriedOutOnEveryDaemon) {
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kA, 0);
  // It waits for the slot.
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kB, 0);
  ASSERT_TRUE(trainer(0).AwaitReady(0, 1));
  ASSERT_NO_FATAL_FAILURE(Detach(0));
  EXPECT_TRUE(Runs());
  for (int rank = 1; rank <= last(); ++rank) {
    ASSERT_TRUE(trainer(rank).AwaitReady(0, 1)) << "rank " << rank;
    trainer(rank).Release(0, 1);
  }
  for (int rank = 1; rank <= last(); ++rank) ASSERT_TRUE(trainer(rank).AwaitReady(0, 2)) << "rank " << rank;
  EXPECT_TRUE(Runs());
}

TEST_P(DeparturesTest, ASlotThatOnlyItHasNotReleasedIsFreeWhenItGoes) {
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kA, 0);
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kB, 0);
  for (int rank = 0; rank <= last(); ++rank) ASSERT_TRUE(trainer(rank).AwaitReady(0, 1));
  for (int rank = 1; rank <= last(); ++rank) trainer(rank).Release(0, 1);
  ASSERT_TRUE(trainer(0).AwaitDaemonAsleep());
  ASSERT_NO_FATAL_FAILURE(Detach(0));
  for (int rank = 1; rank <= last(); ++rank) ASSERT_TRUE(trainer(rank).AwaitReady(0, 2)) << "rank " << rank;
}

TEST_P(DeparturesTest, WhatIsSentBehindItWaitsForWhatIsBeforeIt) {
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kA, 0);
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kB, 0);
  ASSERT_TRUE(trainer(0).AwaitReady(0, 1));
  ASSERT_NO_FATAL_FAILURE(Detach(0));
  // The ranks of other daemons go on to what rank 0 does not send, while the last one still holds the slot.
  for (int rank = 1; rank <= last(); ++rank) {
    ASSERT_TRUE(trainer(rank).AwaitReady(0, 1));
    if (is_one_daemon()) continue;
    trainer(rank).Gather(kA, 1);
    if (rank < last()) trainer(rank).Release(0, 1);
  }
  if (is_one_daemon()) {
    // Gathers are each rank's own; commits are not.
    for (int rank = 1; rank <= last(); ++rank) {
      trainer(rank).Release(0, 1);
      ASSERT_TRUE(trainer(rank).AwaitReady(0, 2));
      trainer(rank).Release(0, 2);
    }
    for (int rank = 1; rank <= last(); ++rank) trainer(rank).Commit(1);
  }
  if (!is_one_daemon()) trainer(last()).Release(0, 1);
  for (int rank = 1; rank <= last(); ++rank) ExpectEnded(rank, "rank 0: process ");
  // The end moves the word ahead by a known step.
  EXPECT_EQ(trainer(last()).words().ready(0, 0).value.load() % wire::kFinishedStep, 2u) << "it came before the end";
  ExpectNextEpochWorks();
}

TEST_P(DeparturesTest, WhatAnotherDaemonsRankHasNotSentEndsTheEpoch) {
  ASSERT_NO_FATAL_FAILURE(Detach(0));
  EXPECT_TRUE(Runs());
  for (int rank = 1; rank <= last(); ++rank) is_one_daemon() ? trainer(rank).Commit(1) : trainer(rank).Gather(kA, 0);
  for (int rank = 1; rank <= last(); ++rank) ExpectEnded(rank, "rank 0: process ");
  ExpectNextEpochWorks();
}

TEST_P(DeparturesTest, ACommitThatAllHaveSentIsAnsweredOnEveryDaemon) {
  daemons_.Push(kA, [](int) { return std::vector<float>(64 * 32, 1.0f); });
  trainer(last()).Commit(1);
  ASSERT_OK(trainer(last()).Detach());
  for (int rank = 0; rank < last(); ++rank) trainer(rank).Commit(1);
  for (int rank = 0; rank < last(); ++rank) EXPECT_TRUE(trainer(rank).AwaitCommitted(1).has_value()) << "rank " << rank;
  ASSERT_NE(trainer(last()).AwaitEnded(), nullptr);
  EXPECT_EQ(trainer(last()).AwaitEnded()->numbers.commit_number, 1);
  EXPECT_TRUE(Runs());
}

TEST_P(DeparturesTest, TheLastRankOfTheWorldEndsTheEpoch) {
  for (int rank = 0; rank <= last(); ++rank) trainer(rank).Gather(kA, 0);
  for (int rank = 0; rank <= last(); ++rank) ASSERT_TRUE(trainer(rank).AwaitReady(0, 1));
  for (int rank = 0; rank <= last(); ++rank) ASSERT_NO_FATAL_FAILURE(Detach(rank));
  ExpectNextEpochWorks();
}

}  // namespace
}  // namespace paramshard::server
