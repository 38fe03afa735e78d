// Steps of a model: gathers, pushes and commits of all ranks.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::SizeIs;

TEST_F(ModelTest, AGatherBringsThePlanesOfThePeers) {
  Attach();
  for (const auto& trainer : trainers_) {
    trainer->Gather(kW, 0);
    trainer->Gather(kMx, 1, v1::PHASE_BACKWARD);
  }
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, 1));
    ASSERT_TRUE(trainer->AwaitReady(1, 2));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
    EXPECT_TRUE(trainer->HoldsPlanes(kMx, 1, Phase::kBackward));
    EXPECT_EQ(trainer->words().ready(0, trainer->rank()).value, 0u) << "one's own pieces are one's own business";
  }
}

TEST_F(ModelTest, ASlotIsUsedAgainAfterItsRelease) {
  Attach();
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Gather(kW, 0);
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  trainer(0).Release(0, 1);
  ASSERT_TRUE(trainer(0).AwaitReady(0, 2)) << "a gather is its rank's own";
  EXPECT_TRUE(trainer(0).HoldsPlanes(kW, 0));
  ASSERT_TRUE(AwaitWait("rank 1: release of slot 0 for gather w"));
  EXPECT_EQ(trainer(1).words().ready(0, 0).value, 1u);
  EXPECT_TRUE(trainer(1).HoldsPlanes(kMx, 0)) << "it is still in use";
  trainer(1).Release(0, 1);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 2));
  EXPECT_TRUE(trainer(1).HoldsPlanes(kW, 0));
}

// More than the daemon reads from a ring at once, and more than it holds for a rank.
TEST_F(ModelTest, ManyCommandsMayWaitInARing) {
  constexpr int64_t kMany = 2 * Sequence::kMostCommands + 100;
  Attach();
  const auto send = [this](int rank) {
    for (int64_t i = 0; i < kMany; ++i) trainer(rank).Gather(i % 2 == 0 ? kMx : kW, 0);
  };
  const auto taken = [this] { return model_->trainers().activity().trainers[0].last_command; };
  send(0);
  for (const absl::Time end = absl::Now() + absl::Seconds(30);
       taken() <= Sequence::kMostCommands && absl::Now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(taken(), Sequence::kMostCommands + 1) << "the first one is done";
  EXPECT_NE(trainer(0).words().ring_tail().value, trainer(0).words().ring_head().value);
  send(1);
  for (const auto& trainer : trainers_) trainer->Release(0, kMany);
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, kMany));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
  }
}

TEST_F(ModelTest, WhoSendsByStreamMoreThanTheDaemonHoldsIsRefused) {
  Attach();
  for (int64_t n = 1; n <= Sequence::kMostCommands; ++n) {
    ASSERT_OK(model_->trainers().Submit(trainer(0).session(), PushCommand(n, kW, 0)));
  }
  EXPECT_THAT(model_->trainers().Submit(trainer(0).session(), PushCommand(Sequence::kMostCommands + 1, kW, 0)),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("rank 0"), HasSubstr("at most 1024"))));
}

TEST_F(ModelTest, AFourthUnansweredCommitEndsTheEpoch) {
  Attach();
  const std::string hash = StateHash(*model_);
  for (int64_t n = 1; n <= 4; ++n) trainer(1).Commit(n, std::string(kMaxClientStateBytes / 2, 'x'));
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("commit 4 of rank 1: want at most 3 unanswered commits"));
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AGatherAfterACommitSeesTheNewPlanes) {
  Attach();
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  const std::vector<uint8_t> before(trainer(0).slot(0), trainer(0).slot(0) + kElements * sizeof(float));
  // All is sent at once: push, commit, and the gather of the next step.
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(0, kW, 1.0f);
    trainer->Push(kW, 0);
    trainer->Commit(1);
    trainer->Gather(kW, 0);
  }
  ASSERT_TRUE(AwaitWait("release of slot 0 for commit 1")) << "the planes are still read";
  EXPECT_EQ(trainer(0).words().committed().value, 0u);
  for (const auto& trainer : trainers_) trainer->Release(0, 1);
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, 4));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
    EXPECT_TRUE(trainer->AwaitCommitted(1).has_value());
  }
  EXPECT_NE(std::memcmp(before.data(), trainer(0).slot(0), before.size()), 0);
}

// Gradients 1 and 3: their mean is 2, its norm 2 sqrt(24). The first step of Adam is one learning rate long.
TEST_F(ModelTest, AStepWithKnownNumbers) {
  Attach();
  Push(kW, [](int rank) { return rank == 0 ? 1.0f : 3.0f; });
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.commit_number, 1);
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.skipped, 0u);
  EXPECT_EQ(answer.non_finite_count, 0);
  EXPECT_DOUBLE_EQ(answer.gradient_norm, 2 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), AllOf(SizeIs(kElements), All(0.1f * 2)));
  EXPECT_THAT(Read(kW, StateTensor::kSecondMoment), All(0.01f * 4));
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
}

// To and fro, with what has no gradient too.
TEST_F(ModelTest, StepsThatMoveTheStateLeaveTheSameBytes) {
  std::vector<std::string> in_place, moved;
  for (std::vector<std::string>* const hashes : {&in_place, &moved}) {
    const bool moves = hashes == &moved;
    Open(TestSpec(), {.moves = {.moves = moves, .rule = {.most_bands = 100, .least_elements = 1}}});
    Attach();
    for (int step = 0; step < 4; ++step) {
      if (step != 2) Push(kW, [](int rank) { return 0.5f + static_cast<float>(rank); });
      if (step != 1) Push(kMx, [](int rank) { return 0.25f - static_cast<float>(rank); });
      Commit();
      hashes->push_back(StateHash(*model_));
      const Shard& shard = *model_->committed().shards[0];
      absl::ReaderMutexLock lock(&shard.mutex());
      EXPECT_EQ(shard.position() > 0, moves && step % 2 == 0);
    }
  }
  EXPECT_EQ(moved, in_place);
}

TEST_F(ModelTest, GradientsMayBeSummed) {
  v1::ModelSpec spec = TestSpec();
  spec.set_gradient_reduction(v1::GRADIENT_REDUCTION_SUM);
  Open(spec);
  Attach();
  Push(kW, [](int rank) { return rank == 0 ? 1.0f : 3.0f; });
  EXPECT_DOUBLE_EQ(Commit().gradient_norm, 4 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), All(0.1f * 4));
}

TEST_F(ModelTest, ClippingScalesTheGradientToTheNorm) {
  Attach();
  Push(kW, [](int) { return 2.0f; });
  const wire::CommitRecord answer = Commit([](v1::Commit& commit) { commit.set_max_grad_norm(0.5f); });
  EXPECT_DOUBLE_EQ(answer.gradient_norm, 2 * std::sqrt(24.0)) << "before clipping";
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), All(0.1f * 0.5f / std::sqrt(24.0f)));
}

TEST_F(ModelTest, ASmallGradientIsNotClipped) {
  Attach();
  Push(kW, [](int) { return 2.0f; });
  Commit([](v1::Commit& commit) { commit.set_max_grad_norm(1000); });
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), All(0.2f));
}

TEST_F(ModelTest, ALossScaleIsTakenOut) {
  Attach();
  Push(kW, [](int) { return 2048.0f; });
  EXPECT_DOUBLE_EQ(Commit([](v1::Commit& commit) { commit.set_gradient_scale(1024); }).gradient_norm,
                   2 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), All(0.2f));
}

TEST_F(ModelTest, PushesOfOneStepAddUp) {
  Attach();
  Push(kW, [](int rank) { return static_cast<float>(rank); });
  Push(kW, [](int rank) { return static_cast<float>(rank) * 3; });
  Commit();
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), All(0.1f * (0.5f + 1.5f)));
}

TEST_F(ModelTest, EachElementsGradientGoesToItsOwner) {
  Attach();
  std::vector<float> gradients(kElements);
  for (int i = 0; i < kElements; ++i) gradients[i] = static_cast<float>(i + 1);
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(1, kW, gradients);
    trainer->Push(kW, 1);
  }
  Commit();
  for (float& gradient : gradients) gradient *= 0.1f;
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment), Pointwise(FloatNear(1e-6f), gradients));
}

TEST_F(ModelTest, AParameterWithoutAGradientIsUntouched) {
  Attach();
  const std::vector<float> before = Read(kMx, StateTensor::kMaster);
  Step();
  EXPECT_EQ(Read(kMx, StateTensor::kMaster), before);
  for (const auto& shard : model_->committed().shards) {
    absl::ReaderMutexLock lock(&shard->mutex());
    EXPECT_EQ(shard->numbers(*shard->extents().Find(kMx, 0)).step, 0);
    EXPECT_EQ(shard->numbers(*shard->extents().Find(kW, 0)).step, 1);
  }
}

TEST_F(ModelTest, ACommitWithoutGradientsIsAnsweredAndChangesNothing) {
  Attach();
  const std::string hash = StateHash(*model_);
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.gradient_norm, 0);
  EXPECT_EQ(StateHash(*model_), hash);
}

TEST_F(ModelTest, CommandsMayComeByStream) {
  Attach();
  for (const auto& trainer : trainers_) {
    EXPECT_OK(model_->trainers().Submit(trainer->session(), GatherCommand(1, kW, 0)));
    EXPECT_OK(model_->trainers().Submit(trainer->session(), GatherCommand(2, kMx, 1)));
  }
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(1, 2));
    EXPECT_TRUE(trainer->HoldsPlanes(kMx, 1));
  }
}

TEST_F(ModelTest, TheSameStepsGiveTheSameBytes) {
  const auto run = [this] {
    Attach();
    for (int step = 0; step < 5; ++step) {
      Push(kMx, [&](int rank) { return 0.125f * static_cast<float>(step - rank); });
      Push(kW, [&](int rank) { return 0.3f * static_cast<float>(step + rank); });
      Commit([](v1::Commit& commit) { commit.set_max_grad_norm(1); });
    }
    return StateHash(*model_);
  };
  const std::string first = run();
  Open(TestSpec());
  EXPECT_EQ(run(), first);
}

TEST_F(ModelTest, ANonFiniteGradientSkipsTheStep) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  Push(kMx, [](int) { return 1.0f; });
  std::vector<float> gradients(kElements, 1.0f);
  gradients[17] = std::numeric_limits<float>::infinity();
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(0, kW, trainer->rank() == 1 ? gradients : std::vector<float>(kElements));
    trainer->Push(kW, 0);
  }
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.commit_number, 2);
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.skipped, 1u);
  EXPECT_EQ(answer.non_finite_count, 1);
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(model_->committed().commits.numbers().skipped, 1);
  EXPECT_EQ(model_->committed().commits.client_state(1), "rank 1, commit 2");
  // Its gradients are forgotten.
  Step();
  EXPECT_EQ(model_->committed().commits.numbers().version, 2);
  EXPECT_THAT(Read(kW, StateTensor::kFirstMoment),
              testing::Each(testing::Truly([](float value) { return std::isfinite(value); })));
}

TEST_F(ModelTest, ARepeatedCommitIsAnsweredNotApplied) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  trainers_.clear();
  Attach();
  EXPECT_EQ(trainer(0).started().numbers.commit_number, 1);
  for (const auto& trainer : trainers_) {
    const auto record = trainer->AwaitCommitted(1);
    ASSERT_TRUE(record.has_value()) << "the answer is there from the start";
    EXPECT_EQ(record->version, 1);
    trainer->Commit(1);
    trainer->Gather(kW, 0);
  }
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitReady(0, 2));
  EXPECT_EQ(commit_number(), 1);
  EXPECT_EQ(StateHash(*model_), hash);
}

}  // namespace
}  // namespace paramshard::server
