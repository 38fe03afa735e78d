#include "server/state/copy_gate.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kLong = absl::Hours(1);

TEST(CopyGateTest, NoCopyBeginsWhileACommitIsUnderWay) {
  CopyGate gate(2, &Clock::Steady());
  gate.BeginCommit();
  EXPECT_FALSE(gate.BeginCopy());
  EXPECT_FALSE(gate.is_copying());
  gate.EndCommit();
  EXPECT_TRUE(gate.BeginCopy());
  EXPECT_TRUE(gate.is_copying());
}

TEST(CopyGateTest, ARankWaitsForItsOwnCopyAlone) {
  CopyGate gate(2, &Clock::Steady());
  ASSERT_TRUE(gate.BeginCopy());
  gate.EndCopy(1);
  gate.AwaitCopied(1, kLong);
  EXPECT_TRUE(gate.is_copying());
  gate.EndCopy(0);
  gate.AwaitCopied(0, kLong);
  EXPECT_FALSE(gate.is_copying());
  EXPECT_FALSE(gate.is_given_up());
}

TEST(CopyGateTest, AStepGoesOnWhenItsCopyIsThrough) {
  ManualClock clock;
  CopyGate gate(1, &clock);
  ASSERT_TRUE(gate.BeginCopy());
  std::thread step([&gate] { gate.AwaitCopied(0, kLong); });
  while (!gate.is_awaited()) std::this_thread::yield();
  clock.Advance(absl::Seconds(3));
  gate.EndCopies();
  step.join();
  EXPECT_EQ(gate.stall(), absl::Seconds(3));
  EXPECT_FALSE(gate.is_given_up());
}

TEST(CopyGateTest, ACopyThatTakesTooLongIsGivenUp) {
  CopyGate gate(1, &Clock::Steady());
  ASSERT_TRUE(gate.BeginCopy());
  gate.AwaitCopied(0, absl::Milliseconds(1));
  EXPECT_TRUE(gate.is_given_up());
  EXPECT_GE(gate.stall(), absl::Milliseconds(1));
  gate.EndCopies();
  ASSERT_TRUE(gate.BeginCopy());
  EXPECT_FALSE(gate.is_given_up()) << "the next one is another";
  EXPECT_EQ(gate.stall(), absl::ZeroDuration());
}

}  // namespace
}  // namespace paramshard::server
