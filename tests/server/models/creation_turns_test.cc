// Creations take turns, and what is left of lost models is freed beside them.
#include "server/models/creation_turns.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelSpec SpecOf(const std::string& name, int rows = 4) {
  return Parse(MakeSpec(name, {MakeUnit("u", {MakeParameter("u.w", {rows, 8})})}));
}
bool IsHere() { return false; }
bool IsGone() { return true; }

// Holds the first turn, until it is given back.
class CreationTurnsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto first = turns_.Take(SpecOf("m"), IsHere);
    ASSERT_OK(first);
    first_.emplace(*std::move(first));
  }
  void GiveBack() { first_.reset(); }
  // Returns IsAwaited() while another call waits to create such a model.
  bool IsAwaitedBy(const ModelSpec& spec) {
    absl::Notification waits, may_go;
    std::thread waiting([&] {
      const auto is_gone = [&] {
        if (!waits.HasBeenNotified()) waits.Notify();
        return may_go.HasBeenNotified();
      };
      EXPECT_THAT(turns_.Take(spec, is_gone).status(), StatusIs(absl::StatusCode::kAborted));
    });
    waits.WaitForNotification();
    const bool is_awaited = turns_.IsAwaited();
    may_go.Notify();
    waiting.join();
    return is_awaited;
  }

  CreationTurns turns_;

 private:
  std::optional<CreationTurns::Turn> first_;
};

TEST_F(CreationTurnsTest, ACallerWhoIsGoneWaitsNoLonger) {
  int looks = 0;
  EXPECT_THAT(
      turns_.Take(SpecOf("other"), [&] { return ++looks == 2; }).status(),
      StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("create model other"), HasSubstr("caller disconnected"))));
  GiveBack();
  EXPECT_THAT(turns_.Take(SpecOf("other"), IsGone).status(), StatusIs(absl::StatusCode::kAborted))
      << "nothing is begun";
}

TEST_F(CreationTurnsTest, WhoeverWaitsHasTheTurnWhenItIsGivenBack) {
  absl::Notification waits;
  std::thread next([&] {
    const auto is_gone = [&] {
      if (!waits.HasBeenNotified()) waits.Notify();
      return false;
    };
    EXPECT_OK(turns_.Take(SpecOf("other"), is_gone).status());
  });
  waits.WaitForNotification();
  GiveBack();
  next.join();
}

TEST_F(CreationTurnsTest, OneThatWaitsForTheSameModelAwaitsIt) {
  EXPECT_FALSE(turns_.IsAwaited());
  EXPECT_TRUE(IsAwaitedBy(SpecOf("m")));
  EXPECT_FALSE(turns_.IsAwaited()) << "it has gone";
}

TEST_F(CreationTurnsTest, OneThatWaitsForAnotherModelDoesNotAwaitIt) {
  EXPECT_FALSE(IsAwaitedBy(SpecOf("other")));
  EXPECT_FALSE(IsAwaitedBy(SpecOf("m", 5))) << "another spec";
}

TEST_F(CreationTurnsTest, WhatIsLeftOfOtherModelsIsFreedMeanwhile) {
  EXPECT_OK(turns_.TakeToFree("other").status());
  EXPECT_THAT(turns_.TakeToFree("m").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("delete model m: it is being created anew")));
  GiveBack();
  EXPECT_OK(turns_.TakeToFree("m").status());
}

TEST_F(CreationTurnsTest, NobodyCreatesAModelWhoseNameIsBeingFreed) {
  GiveBack();
  ASSERT_OK_AND_ASSIGN(std::optional<CreationTurns::Turn> freeing, turns_.TakeToFree("m"));
  int looks = 0;
  EXPECT_THAT(turns_.Take(SpecOf("m"), [&] { return ++looks == 2; }).status(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_OK(turns_.Take(SpecOf("other"), IsHere).status());
  freeing.reset();
  EXPECT_OK(turns_.Take(SpecOf("m"), IsHere).status());
}

TEST_F(CreationTurnsTest, OneNameIsFreedByOneAtATime) {
  ASSERT_OK_AND_ASSIGN(std::optional<CreationTurns::Turn> freeing, turns_.TakeToFree("other"));
  bool is_freed = false;
  absl::Notification begun;
  std::thread next([&] {
    begun.Notify();
    EXPECT_OK(turns_.TakeToFree("other").status());
    EXPECT_TRUE(is_freed);
  });
  begun.WaitForNotification();
  is_freed = true;
  freeing.reset();
  next.join();
}

}  // namespace
}  // namespace paramshard::server
