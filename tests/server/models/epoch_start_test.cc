// Actions of trainers while their epoch starts.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/faulty_world.h"
#include "tests/server/training/command.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EpochStartTest : public FaultyWorldTest {
 protected:
  // Attaches all ranks; the first one then does this, before there is memory for any rank.
  FakeTrainers AttachThen(Model& model, const std::function<void(FakeTrainer& first)>& act) {
    FakeTrainers trainers;
    for (int rank = 0; rank < model.world().rank_count(); ++rank) {
      trainers.push_back(std::make_unique<FakeTrainer>(&model, rank));
    }
    faults_.before_allocation = [&, acted = false](const std::string& name) mutable {
      if (name == "paramshard-slots" && !std::exchange(acted, true)) act(*trainers[0]);
    };
    for (const auto& trainer : trainers) EXPECT_OK(trainer->Attach());
    for (const auto& trainer : trainers) EXPECT_NE(trainer->AwaitEnded(), nullptr);
    faults_.before_allocation = [](const std::string&) {};
    return trainers;
  }
};

TEST_F(EpochStartTest, ACommandBeforeStartedIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const std::shared_ptr<Model> model = world_->Create(Spec());
  absl::Status submitted;
  const FakeTrainers trainers = AttachThen(*model, [&](FakeTrainer& first) {
    submitted = model->trainers().Submit(first.session(), GatherCommand(1, 0, 0));
    // Sends a command the way the session's handler does.
    first.Leave(submitted);
  });
  EXPECT_THAT(submitted, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("command 1 of rank 0"), HasSubstr("before `started`"))));
  for (const auto& trainer : trainers) {
    EXPECT_EQ(trainer->AwaitEnded()->why.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(trainer->AwaitEnded()->why.message(), HasSubstr("rank 0: command 1"));
  }
  ExpectEpochWorks(*model);
}

TEST_F(EpochStartTest, ADeathBeforeThereIsMemoryEndsTheEpoch) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const std::shared_ptr<Model> model = world_->Create(Spec());
  const FakeTrainers trainers =
      AttachThen(*model, [](FakeTrainer& first) { first.Leave(absl::AbortedError("process 7 has gone")); });
  for (const auto& trainer : trainers) {
    EXPECT_EQ(trainer->AwaitEnded()->why.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(trainer->AwaitEnded()->why.message(), HasSubstr("rank 0: process 7 has gone"));
  }
  ExpectEpochWorks(*model);
}

// The rendezvous of an epoch that has ended says no more than that.
TEST_F(EpochStartTest, TheWorldsReasonReplacesWhatTheEnginesFoundOut) {
  ASSERT_NO_FATAL_FAILURE(Open({.mesh_inside = true}));
  if (devices_.size() < 2) GTEST_SKIP() << "needs engines of two devices";
  const std::shared_ptr<Model> model = world_->Create(Spec());
  absl::Notification failed;
  world_->cluster().FailRendezvous([&, told = false]() mutable {
    if (!std::exchange(told, true)) failed.Notify();
    return absl::AbortedError("epoch 1 of m: over");
  });
  FakeTrainers trainers;
  for (int rank = 0; rank < model->world().rank_count(); ++rank) {
    trainers.push_back(std::make_unique<FakeTrainer>(model.get(), rank));
    ASSERT_OK(trainers.back()->Attach());
  }
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(absl::Seconds(60)));
  model->trainers().OnEpochEnd(1, absl::AbortedError("rank 5: process 7 has gone"));
  for (const auto& trainer : trainers) {
    ASSERT_NE(trainer->AwaitEnded(), nullptr);
    EXPECT_THAT(trainer->AwaitEnded()->why.message(), HasSubstr("rank 5: process 7 has gone"));
  }
}

}  // namespace
}  // namespace paramshard::server
