// Values that a model's epochs, commits and copies leave in the registry.

#include <limits>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/metric_registry.h"
#include "tests/server/models/model_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

class ModelMetricsTest : public ModelTest {
 protected:
  void SetUp() override { OpenCounted({}); }
  void TearDown() override {
    trainers_.clear();
    model_.reset();
    CloseWorld();
  }

  void OpenCounted(TestWorld::Options options) {
    options.metrics = &metrics_;
    Open(TestSpec(), options);
  }

  int64_t Count(Metric metric, int series = 0) const { return metrics_.count(metric, series); }
  int64_t Commits(CommitResult result) const { return Count(Metric::kCommits, static_cast<int>(result)); }
  int64_t Moved(MoveDirection direction) const { return Count(Metric::kMovedBytes, static_cast<int>(direction)); }
  // How many observations a histogram has.
  template <typename Value = int>
  int64_t Observed(Metric metric, Value value = {}) const {
    int64_t count = 0;
    for (int bucket = 0; bucket < CellsOf(TraitsOf(metric)) - 1; ++bucket) {
      count += metrics_.bucket(metric, static_cast<int>(value), bucket);
    }
    return count;
  }
  // The last trainer is gone, and the epoch has ended.
  void EndEpoch() {
    for (const auto& trainer : trainers_) trainer->Leave(absl::AbortedError("process 7 has gone"));
    for (const auto& trainer : trainers_) EXPECT_NE(trainer->AwaitEnded(), nullptr);
    trainers_.clear();
  }

  MetricRegistry metrics_;
};

TEST_F(ModelMetricsTest, AStepIsCountedOncePerRankOrOnce) {
  const absl::Time before = absl::Now();
  EXPECT_EQ(model_->last_commit_time(), std::nullopt);
  Attach();
  EXPECT_EQ(Count(Metric::kEpochsStarted), 1);
  Step();
  EXPECT_EQ(Commits(CommitResult::kApplied), 1);
  EXPECT_EQ(Observed(Metric::kPush), 2);
  for (const CommitPhase phase : {CommitPhase::kSum, CommitPhase::kApply}) {
    EXPECT_EQ(Observed(Metric::kCommitPhase, phase), 2);
  }
  EXPECT_EQ(Observed(Metric::kCommitPhase, CommitPhase::kVote), 1);
  EXPECT_EQ(Observed(Metric::kCommitPhase, CommitPhase::kEncode), 0) << "no format of the model needs amaxes";
  ASSERT_TRUE(model_->last_commit_time().has_value());
  EXPECT_GE(*model_->last_commit_time(), before);
  EXPECT_LE(*model_->last_commit_time(), absl::Now());
  EndEpoch();
  EXPECT_EQ(Observed(Metric::kCommitPhase, CommitPhase::kAnswer), 1);
}

TEST_F(ModelMetricsTest, BytesAreCountedThatGoToOtherRanks) {
  Attach();
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitReady(0, 1));
  // Each rank has half of the floats, and sends it to one other.
  EXPECT_EQ(Moved(MoveDirection::kSent), kElements * 4);
  EXPECT_EQ(Moved(MoveDirection::kReceived), 0);
  for (const auto& trainer : trainers_) trainer->Release(0, 1);
  Push(kW, [](int) { return 1.0f; });
  Commit();
  EXPECT_EQ(Observed(Metric::kGather), 2);
  EXPECT_EQ(Moved(MoveDirection::kSent), kElements * 4);
  EXPECT_EQ(Moved(MoveDirection::kReceived), kElements * 4);
}

TEST_F(ModelMetricsTest, ACommitWithAGradientThatIsNotFiniteIsSkipped) {
  Attach();
  Step(std::numeric_limits<float>::infinity());
  EXPECT_EQ(Commits(CommitResult::kSkipped), 1);
  EXPECT_EQ(Commits(CommitResult::kApplied), 0);
}

TEST_F(ModelMetricsTest, VotesThatComeToNothingAreToldApart) {
  for (const absl::Status& status : {absl::AbortedError("elsewhere"), absl::DataLossError("in doubt")}) {
    Attach();
    world_->cluster().BeforeVote([status] { return status; });
    Push(kW, [](int) { return 1.0f; });
    for (const auto& trainer : trainers_) trainer->Commit(1);
    for (const auto& trainer : trainers_) EXPECT_NE(trainer->AwaitEnded(), nullptr);
    trainers_.clear();
  }
  EXPECT_EQ(Commits(CommitResult::kGivenUp), 1);
  EXPECT_EQ(Commits(CommitResult::kInDoubt), 1);
  EXPECT_EQ(Commits(CommitResult::kApplied), 0);
}

TEST_F(ModelMetricsTest, EpochsAreCountedByTheirEnd) {
  Attach();
  EndEpoch();
  Attach();
  for (const auto& trainer : trainers_) EXPECT_OK(trainer->Detach());
  for (const auto& trainer : trainers_) EXPECT_NE(trainer->AwaitEnded(), nullptr);
  trainers_.clear();
  model_.reset();
  CloseWorld();
  EXPECT_EQ(Count(Metric::kEpochsEnded, static_cast<int>(absl::StatusCode::kAborted)), 1);
  EXPECT_EQ(Count(Metric::kEpochsEnded, 0), 1) << "detached";
  EXPECT_EQ(Count(Metric::kEpochsStarted), 2);
}

TEST_F(ModelMetricsTest, WhoAloneIsWaitedForIsCounted) {
  Attach();
  trainer(0).Commit(1);
  EXPECT_TRUE(AwaitWait("rank 1"));
  trainer(1).Commit(1);
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitCommitted(1).has_value());
  EXPECT_EQ(Count(Metric::kRankWait, 0), 0);
  EXPECT_GT(Count(Metric::kRankWait, 1), 0);
}

}  // namespace
}  // namespace paramshard::server
