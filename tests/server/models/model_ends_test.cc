// Ends of epochs, and what they leave.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Points of a step at which a trainer dies; each point includes the ones before.
enum class Point { kAttached, kGathered, kOnePushed, kAllPushed, kOneCommitted };

class DeathTest : public ModelTest, public testing::WithParamInterface<Point> {
 protected:
  // Brings all trainers to the point; rank 0 may be further than rank 1.
  void RunTo(Point point) {
    if (point >= Point::kGathered) {
      for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
      for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
    }
    for (int rank : {0, 1}) {
      if (point < (rank == 0 ? Point::kOnePushed : Point::kAllPushed)) continue;
      trainer(rank).FillGradients(0, kMx, 100.0f);
      trainer(rank).Push(kMx, 0);
      trainer(rank).Release(0, 1);
    }
    if (point >= Point::kAllPushed) {
      ASSERT_TRUE(trainer(0).AwaitDrained(0, 2));
    }
    if (point >= Point::kOneCommitted) trainer(0).Commit(commit_number() + 1, "never answered");
  }
};

std::string PointName(const testing::TestParamInfo<Point>& info) {
  constexpr const char* kNames[] = {"Attached", "Gathered", "OnePushed", "AllPushed", "OneCommitted"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Points, DeathTest,
                         testing::Values(Point::kAttached, Point::kGathered, Point::kOnePushed, Point::kAllPushed,
                                         Point::kOneCommitted),
                         PointName);

TEST_P(DeathTest, LeavesTheStateAsItWasAndTheNextEpochGoesOn) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  ASSERT_NO_FATAL_FAILURE(RunTo(GetParam()));
  trainer(1).Leave();
  ExpectEnded(absl::StatusCode::kAborted,
              AllOf(HasSubstr("epoch 1 of m"), HasSubstr("rank 1"), HasSubstr("resume from commit 1 (version 1)")));
  EXPECT_EQ(trainer(0).AwaitEnded()->numbers.commit_number, 1);
  EXPECT_EQ(trainer(0).AwaitEnded()->numbers.version, 1);
  Attach();
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(trainer(1).started().epoch, 2);
  EXPECT_EQ(trainer(1).started().numbers.commit_number, 1);
  EXPECT_EQ(trainer(1).started().client_state, "rank 1, commit 1");
  ASSERT_TRUE(trainer(1).started().last_commit.has_value());
  EXPECT_EQ(trainer(1).started().last_commit->version, 1);

  // The step that was lost, done again, gives what it gives without a death.
  Push(kMx, [](int) { return 1.0f; });
  Commit();
  const std::string resumed = StateHash(*model_);
  Open(TestSpec());
  Attach();
  Step();
  Push(kMx, [](int) { return 1.0f; });
  Commit();
  EXPECT_EQ(resumed, StateHash(*model_));
}

TEST_F(ModelTest, WaitersWakeAtTheEnd) {
  Attach();
  trainer(0).Gather(kMx, 0);
  trainer(0).Gather(kMx, 0);  // waits for the release of the slot
  ASSERT_TRUE(trainer(0).AwaitReady(0, 1));
  std::thread waiters[] = {std::thread([this] { EXPECT_FALSE(trainer(0).AwaitReady(0, 2)); }),
                           std::thread([this] { EXPECT_FALSE(trainer(0).AwaitCommitted(1).has_value()); }),
                           std::thread([this] { EXPECT_FALSE(trainer(0).AwaitDrained(1, 5)); })};
  while (trainer(0).words().client_waits().value != 3) std::this_thread::yield();
  trainer(1).Leave();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(ModelTest, ATrainerMayAttachAgainAsSoonAsItHearsOfTheEnd) {
  Attach();
  std::vector<std::unique_ptr<FakeTrainer>> next;
  std::vector<absl::Status> attached;
  absl::Mutex mu;
  for (const auto& trainer : trainers_) {
    trainer->WhenEnded([&, rank = trainer->rank()] {
      absl::MutexLock lock(&mu);
      next.push_back(std::make_unique<FakeTrainer>(model_.get(), rank));
      attached.push_back(next.back()->Attach());
    });
  }
  // An end that comes from within the epoch.
  trainer(0).SendRecord("no command");
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("want a serialized Command"));
  EXPECT_THAT(attached, ElementsAre(IsOk(), IsOk()));
  for (const auto& trainer : next) EXPECT_TRUE(trainer->AwaitStarted());
}

TEST_F(ModelTest, MemoryOfATrainerThatIsGoneIsGivenBack) {
  Attach();
  trainer(0).FillGradients(0, kMx, 5.0f);
  trainer(1).FillGradients(0, kMx, 5.0f);
  trainer(1).Leave();
  ExpectEnded(absl::StatusCode::kAborted, testing::_);
  EXPECT_EQ(trainer(1).gradient_slot(0)[3], 0) << "pages of the dead";
  EXPECT_NE(trainer(0).gradient_slot(0)[3], 0) << "who lives keeps its mapping";
}

TEST_F(ModelTest, EveryEpochHasMemoryOfItsOwn) {
  Attach();
  trainer(0).FillGradients(0, kMx, 5.0f);
  FakeTrainers old = std::move(trainers_);
  old[1]->Leave();
  ASSERT_NE(old[0]->AwaitEnded(), nullptr);
  Attach();
  EXPECT_EQ(trainer(0).gradient_slot(0)[3], 0);
  // The old epoch's trainer goes on writing: nothing reads it.
  old[0]->Push(kMx, 0);
  old[0]->Commit(1);
  Step();
  EXPECT_EQ(commit_number(), 1);
  EXPECT_EQ(old[0]->words().status().value, static_cast<uint32_t>(absl::StatusCode::kAborted));
}

TEST_F(ModelTest, ScribblesOnPlanesEndWithTheEpoch) {
  Attach();
  std::fill_n(model_->committed().shards[0]->memory().planes().data(),
              model_->committed().shards[0]->memory().planes().size_bytes(), 0x55);
  trainers_.clear();
  Attach();
  StateHash(*model_);
}

TEST_F(ModelTest, RanksThatDisagreeAreBothNamedToAll) {
  Attach();
  const std::string hash = StateHash(*model_);
  trainer(0).Discard();
  trainer(1).Gather(kMx, 0);
  trainer(1).Commit(1);
  ExpectEnded(
      absl::StatusCode::kFailedPrecondition,
      AllOf(HasSubstr("rank 0 sent discard (command 1)"), HasSubstr("rank 1 sent commit 1"), HasSubstr("(command 2)")));
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommitThatDiffersBetweenRanksIsAppliedNowhere) {
  Attach();
  const std::string hash = StateHash(*model_);
  Push(kW, [](int) { return 1.0f; });
  for (const auto& trainer : trainers_) {
    v1::Command command = CommitCommand(2, 1);
    command.mutable_commit()->mutable_groups(0)->set_weight_decay(static_cast<float>(trainer->rank()));
    trainer->Send(command);
  }
  ExpectEnded(absl::StatusCode::kFailedPrecondition, HasSubstr("weight_decay 1"));
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(commit_number(), 0);
}

TEST_F(ModelTest, ACommandThatBreaksARuleEndsTheEpoch) {
  Attach();
  trainer(1).Gather(77, 0);
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("want a unit in [0, 3), got 77"));
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommandByStreamThatBreaksARuleEndsTheEpoch) {
  Attach();
  EXPECT_OK(model_->trainers().Submit(trainer(0).session(), CommitCommand(1, 5)));
  ExpectEnded(absl::StatusCode::kFailedPrecondition, HasSubstr("want number 1, got 5"));
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACorruptRingEndsTheEpoch) {
  for (uint32_t head : {3u, 0x80000000u}) {
    Attach();
    const std::string hash = StateHash(*model_);
    trainer(0).words().ring_head().value.store(head);
    trainer(0).words().Ring();
    ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("command ring"));
    EXPECT_EQ(StateHash(*model_), hash);
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AllWordsOfATrainerMayBeGarbage) {
  Attach();
  const std::string hash = StateHash(*model_);
  const wire::Words& words = trainer(0).words();
  auto* page = reinterpret_cast<uint32_t*>(&words.status());
  for (size_t i = 0; i < wire::Words::SizeBytes(words.counts()) / sizeof(uint32_t); ++i) {
    __atomic_store_n(page + i, 0x9e3779b9u * static_cast<uint32_t>(i + 1), __ATOMIC_RELAXED);
  }
  words.Ring();
  const EpochEndInfo* ended = trainer(1).AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->why.code(), absl::StatusCode::kInvalidArgument);
  trainers_.clear();
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

// A healing that has waited for a copy must not begin behind a drain, which ends its epoch: it would break a whole
// state.
TEST_F(ModelTest, NothingBeginsOnceTheModelDrains) {
  bool begun = false;
  const auto begin = [&] {
    begun = true;
    return absl::OkStatus();
  };
  EXPECT_OK(model_->trainers().WhileOpen(begin));
  EXPECT_TRUE(std::exchange(begun, false));
  const absl::Status why = absl::UnavailableError("the daemon drains");
  model_->trainers().BeginDrain(why);
  EXPECT_EQ(model_->trainers().WhileOpen(begin), why);
  EXPECT_FALSE(begun);
}

}  // namespace
}  // namespace paramshard::server
