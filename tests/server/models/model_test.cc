#include "server/models/model.h"

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/model/layout_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/thread.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/training/command.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// --- Attaching ---

TEST_F(ModelTest, AnEpochStartsWhenEveryRankIsAttached) {
  FakeTrainer first(model_.get(), 1);
  ASSERT_OK(first.Attach());
  EXPECT_FALSE(model_->trainers().activity().running);
  EXPECT_THAT(model_->trainers().MissingRanks(), ElementsAre(0));
  EXPECT_THAT(model_->trainers().activity().trainers, SizeIs(1));
  EXPECT_EQ(model_->trainers().activity().trainers[0].waits_for, "other ranks");

  FakeTrainer second(model_.get(), 0);
  ASSERT_OK(second.Attach());
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_TRUE(second.AwaitStarted());
  EXPECT_TRUE(model_->trainers().activity().running);
  EXPECT_THAT(model_->trainers().MissingRanks(), IsEmpty());
  EXPECT_EQ(first.started().epoch, 1);
  EXPECT_EQ(first.started().numbers.commit_number, 0);
  EXPECT_EQ(first.started().numbers.version, 0);
  EXPECT_FALSE(first.started().last_commit.has_value());
  EXPECT_EQ(first.started().client_state, "");
  EXPECT_EQ(first.started().group_rank, 1);
  EXPECT_EQ(first.started().world_size, 2);
  EXPECT_TRUE(first.started().client_lands_own_pieces);
  EXPECT_EQ(first.started().spec->name, "m");
  EXPECT_EQ(first.started().shard_size, model_->layout().ranks());
  EXPECT_EQ(first.started().layout_fingerprint, LayoutFingerprint(model_->layout()));
  EXPECT_EQ(second.started().group_rank, 0);
}

TEST_F(ModelTest, ARankOfNobodyIsRefused) {
  for (int rank : {-1, 2, 1000}) {
    FakeTrainer trainer(model_.get(), rank);
    EXPECT_THAT(trainer.Attach(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(absl::StrCat("want a rank in [0, 2), got ", rank))));
  }
}

TEST_F(ModelTest, ASecondTrainerForARankIsRefusedWithTheHoldersPid) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  const std::string pid = absl::StrCat(10'000 + first.session());
  FakeTrainer second(model_.get(), 0);
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("rank 0"), HasSubstr(pid))));
  // And while an epoch runs.
  FakeTrainer other(model_.get(), 1);
  ASSERT_OK(other.Attach());
  ASSERT_TRUE(first.AwaitStarted());
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(pid)));
  EXPECT_EQ(model_->trainers().HolderOf(0).session, first.session());
  EXPECT_EQ(model_->trainers().HolderOf(0).uid, 7);
}

TEST_F(ModelTest, AWaitingTrainerMayLeave) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  first.Leave(absl::DeadlineExceededError("it waited too long"));
  const EpochEndInfo* ended = first.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->why.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ended->why.message(), "it waited too long");
  EXPECT_EQ(model_->trainers().HolderOf(0).session, 0);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AnUnknownSessionIsIgnored) {
  Attach();
  model_->trainers().Leave(123456789, absl::AbortedError("who"));
  EXPECT_OK(model_->trainers().Submit(123456789, CommitCommand(1, 1)));
  Step();
  EXPECT_EQ(commit_number(), 1);
}

TEST_F(ModelTest, AWorldOfOneRankNeedsNoOther) {
  Open(TestSpec(), {.ranks = 1});
  Attach();
  trainer(0).Gather(kMx, 0);
  trainer(0).Release(0, 1);
  Step();
  EXPECT_EQ(commit_number(), 1);
}

// Every rank hears the same, whichever thread notices first that a trainer was killed.
TEST_F(ModelTest, ATrainerThatDiesWhileItsEpochStartsIsNamed) {
  for (const absl::Status& refusal : {absl::AbortedError("companion: the trainer has closed its companion connection"),
                                      absl::UnavailableError("companion socket: send failed: Broken pipe")}) {
    FakeTrainer first(model_.get(), 0);
    FakeTrainer second(model_.get(), 1);
    second.RefuseMemory(refusal);
    ASSERT_OK(first.Attach());
    ASSERT_OK(second.Attach());
    for (FakeTrainer* each : {&first, &second}) {
      const EpochEndInfo* ended = each->AwaitEnded();
      ASSERT_NE(ended, nullptr);
      EXPECT_EQ(ended->why.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(ended->why.message(),
                  HasSubstr(absl::StrCat("rank 1: process ", 10'000 + second.session(), " exited or disconnected")));
    }
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, MemoryThatCannotBeSentForAnotherReasonEndsTheEpochWithIt) {
  FakeTrainer first(model_.get(), 0);
  FakeTrainer second(model_.get(), 1);
  second.RefuseMemory(absl::ResourceExhaustedError("no descriptors are left"));
  ASSERT_OK(first.Attach());
  ASSERT_OK(second.Attach());
  for (FakeTrainer* each : {&first, &second}) {
    const EpochEndInfo* ended = each->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kResourceExhausted);
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommandBeforeTheEpochIsRefused) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  EXPECT_THAT(model_->trainers().Submit(first.session(), GatherCommand(1, kW, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("command 1 of rank 0"), HasSubstr("before `started`"))));
  first.Leave();
  ASSERT_NE(first.AwaitEnded(), nullptr);
  ExpectNextEpochWorks();
}

// An epoch needs a thread of its own and two for each rank: at every limit it ends, and the daemon goes on.
TEST_F(ModelTest, AnEpochThatGetsNoThreadsEndsWithThat) {
  for (int threads = 0; threads < 5; ++threads) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    FakeTrainer first(model_.get(), 0);
    FakeTrainer second(model_.get(), 1);
    {
      const ThreadShortage shortage(threads);
      ASSERT_OK(first.Attach());
      ASSERT_OK(second.Attach());
      for (FakeTrainer* each : {&first, &second}) {
        const EpochEndInfo* ended = each->AwaitEnded();
        ASSERT_NE(ended, nullptr);
        EXPECT_EQ(ended->why.code(), absl::StatusCode::kResourceExhausted);
        EXPECT_THAT(ended->why.message(), AllOf(HasSubstr("start a thread for"), HasSubstr("ulimit -u")));
      }
    }
    ExpectNextEpochWorks();
    trainers_.clear();
  }
}

// --- Changing the state ---

TEST_F(ModelTest, StateIsChangedBetweenEpochsOnly) {
  const auto change = [this](int* calls) {
    return model_->changes().Import({.commit_number = 12, .version = 10}, [&, calls] {
      ++*calls;
      absl::Status status;
      for (const auto& shard : model_->committed().shards) {
        const ShardExtent& extent = *shard->extents().Find(kW, 0);
        status.Update(shard->Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, 3.0f)));
      }
      return status;
    });
  };
  int calls = 0;
  {
    FakeTrainer waiting(model_.get(), 1);
    ASSERT_OK(waiting.Attach());
    EXPECT_THAT(change(&calls),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat(10'000 + waiting.session())))));
  }
  Attach();
  EXPECT_THAT(change(&calls), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0")));
  EXPECT_EQ(calls, 0);
  trainers_.clear();
  ASSERT_OK(change(&calls)) << "an epoch that is ending is waited for";
  EXPECT_EQ(calls, 1);
  Attach();
  EXPECT_EQ(trainer(0).started().numbers.commit_number, 12);
  EXPECT_EQ(trainer(0).started().numbers.version, 10);
  EXPECT_FALSE(trainer(0).started().last_commit.has_value());
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(3));
  StateHash(*model_);
  Step();
  EXPECT_EQ(commit_number(), 13);
  EXPECT_EQ(model_->committed().commits.numbers().version, 11);
}

// --- Looking at it ---

TEST_F(ModelTest, StatusSaysWhatARankWaitsFor) {
  Attach();
  trainer(1).Gather(kMx, 0);
  trainer(1).Commit(1);
  const auto waits = [this] { return model_->trainers().activity().trainers[1].waits_for; };
  for (const absl::Time end = absl::Now() + absl::Seconds(30); waits().empty() && absl::Now() < end;) {
    std::this_thread::yield();
  }
  const ModelActivity activity = model_->trainers().activity();
  EXPECT_THAT(activity.trainers[1].waits_for, AllOf(HasSubstr("rank 0"), HasSubstr("commit 1 (command 2 of rank 1)")));
  EXPECT_EQ(activity.trainers[1].last_command, 2);
  EXPECT_EQ(activity.trainers[0].last_command, 0);
  EXPECT_EQ(activity.trainers[0].epoch, 1);
  EXPECT_EQ(activity.epoch, 1);
  EXPECT_EQ(activity.engine, "memcpy");
  EXPECT_THAT(activity.slots_bytes, Each(model_->layout().slots_bytes()));
  EXPECT_GT(activity.words_bytes, 0);
  trainers_.clear();
}

// --- Nothing left behind ---

TEST_F(ModelTest, EpochsLeaveNothingBehind) {
  const int64_t descriptors = OpenDescriptors();
  const int64_t threads = Threads();
  for (int i = 0; i < 100; ++i) {
    Attach();
    trainers_.clear();
  }
  EXPECT_TRUE(SettlesWithin(descriptors, OpenDescriptors));
  EXPECT_TRUE(SettlesWithin(threads, Threads));
}

TEST_F(ModelTest, AModelMayBeDestroyedWhileAnEpochRuns) {
  Attach();
  trainer(0).Gather(kMx, 0);
  world_->CloseStore();
  model_.reset();
  ExpectEnded(absl::StatusCode::kUnavailable, HasSubstr("the model was deleted"));
}

}  // namespace
}  // namespace paramshard::server
