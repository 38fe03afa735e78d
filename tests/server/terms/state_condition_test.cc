#include "server/terms/state_condition.h"

#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StateConditionTest : public testing::Test {
 protected:
  // Expects that the state is not accessible because of `kind`.
  void ExpectHeldOff(const std::string& kind) {
    EXPECT_THAT(condition_.CheckSettled("export"),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("export m: " + kind + " is being applied")));
  }
  void Write(ChangeKind kind) {
    condition_.Begin(kind, {});
    condition_.Write();
  }

  StateCondition condition_{"m", std::make_shared<ThrottledLog>()};
};

TEST_F(StateConditionTest, AChangeHoldsOffWhoeverGetsAtTheState) {
  EXPECT_OK(condition_.CheckSettled("export"));
  condition_.Begin(ChangeKind::kImport, {});
  ExpectHeldOff("an import");
  condition_.Write();
  ExpectHeldOff("an import");
  EXPECT_THAT(condition_.CheckNotChanging("restore"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_OK(condition_.CheckFinished("restore")) << "nothing was cut off";
  EXPECT_OK(condition_.unfinished());
  condition_.Settle();
  EXPECT_OK(condition_.CheckSettled("export"));
  EXPECT_FALSE(condition_.is_changing());
}

TEST_F(StateConditionTest, OneThatIsGivenUpLeavesAllAsItWas) {
  condition_.BreakCommit(4, absl::InternalError("a device broke"));
  condition_.Begin(ChangeKind::kRestore, {});
  condition_.GiveUp();
  EXPECT_OK(condition_.CheckSettled("export"));
  EXPECT_THAT(condition_.usable(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("commit 5 broke off")));
}

TEST_F(StateConditionTest, OneThatFailsLosesTheStateUntilAnotherHasSettled) {
  Write(ChangeKind::kImport);
  condition_.Break(absl::InternalError("first"));
  EXPECT_FALSE(condition_.is_changing());
  Write(ChangeKind::kRestore);
  condition_.Break(absl::InternalError("second"));
  EXPECT_THAT(condition_.usable(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("an import broke off"), HasSubstr("first"))));
  Write(ChangeKind::kRestore);
  condition_.Settle();
  EXPECT_OK(condition_.usable());
}

TEST_F(StateConditionTest, ASettledOneEndsADoubt) {
  condition_.SetInDoubt(7, absl::UnavailableError("node 0 is gone"));
  EXPECT_THAT(condition_.doubt(), StatusIs(absl::StatusCode::kDataLoss,
                                           AllOf(HasSubstr("commit 8 is in doubt"), HasSubstr("node 0 is gone"))));
  EXPECT_OK(condition_.usable());
  Write(ChangeKind::kImport);
  condition_.Settle();
  EXPECT_OK(condition_.doubt());
  condition_.SetUnwritten(absl::InternalError("commit 9 is answered"));
  EXPECT_THAT(condition_.doubt(), StatusIs(absl::StatusCode::kInternal, HasSubstr("commit 9 is answered")));
}

TEST_F(StateConditionTest, WhatWasCutOffIsUnfinishedUntilItIsMade) {
  condition_.Resume(ChangeKind::kRestore);
  ExpectHeldOff("a restore");
  EXPECT_THAT(condition_.CheckFinished("import into"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_OK(condition_.CheckNotChanging("restore")) << "it may be begun again";
  condition_.Begin(ChangeKind::kRestore, {});
  condition_.GiveUp();
  EXPECT_THAT(condition_.unfinished(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a restore was interrupted")));
  Write(ChangeKind::kRestore);
  EXPECT_THAT(condition_.unfinished(), StatusIs(absl::StatusCode::kUnavailable));
  condition_.Settle();
  EXPECT_OK(condition_.unfinished());
  EXPECT_OK(condition_.CheckSettled("export"));
}

TEST_F(StateConditionTest, OneThatADrainCutsOffIsNoLoss) {
  Write(ChangeKind::kRestore);
  EXPECT_THAT(condition_.CutOff(absl::CancelledError("the daemon stops")),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("a restore was given up (the daemon stops)")));
  EXPECT_OK(condition_.usable());
  EXPECT_THAT(condition_.unfinished(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(condition_.is_changing());
}

TEST_F(StateConditionTest, OneAtATimeHasTheTurn) {
  ASSERT_OK(condition_.TakeImportLock(ChangeKind::kImport));
  EXPECT_THAT(condition_.TakeImportLock(ChangeKind::kRestore),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("restore m: another import")));
  condition_.ReleaseImportLock();
  EXPECT_OK(condition_.TakeImportLock(ChangeKind::kRestore));
}

TEST_F(StateConditionTest, AWatchIsAskedForAsLongAsItsChangeIsUnderWay) {
  int cancels = 0;
  condition_.Cancel();
  const RestoreWatch watch{.progress = [] { return RestoreProgress{.done_bytes = 43, .all_bytes = 100}; },
                           .cancel = [&] { ++cancels; }};
  condition_.Begin(ChangeKind::kRestore, watch);
  ExpectHeldOff("a restore (43 %)");
  condition_.Cancel();
  condition_.Write();
  condition_.Break(absl::CancelledError("given up"));
  condition_.Cancel();
  EXPECT_EQ(cancels, 1);
  EXPECT_EQ(condition_.progress().has_value(), false);
  EXPECT_THAT(std::string(condition_.usable().message()), Not(HasSubstr("%")));
}

}  // namespace
}  // namespace paramshard::server
