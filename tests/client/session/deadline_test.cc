#include "client/internal/deadline.h"

#include "gmock/gmock.h"

namespace paramshard::internal {
namespace {

TEST(DeadlineTest, ADeadlineOfNoTimeHasPassed) {
  for (const absl::Duration wait : {absl::ZeroDuration(), -absl::Seconds(5), -absl::InfiniteDuration()}) {
    const Deadline deadline = Deadline::After(wait);
    EXPECT_TRUE(deadline.Passed());
    EXPECT_EQ(deadline.Left(), absl::ZeroDuration());
    EXPECT_EQ(gpr_time_to_millis(deadline.ToGrpc()), 0);
  }
}

TEST(DeadlineTest, AnInfiniteWaitIsAYear) {
  const Deadline deadline = Deadline::After(absl::InfiniteDuration());
  EXPECT_FALSE(deadline.Passed());
  EXPECT_GT(deadline.Left(), absl::Hours(24 * 364));
}

// gRPC measures a time span by the monotonic clock, whatever the time of day is by then.
TEST(DeadlineTest, GrpcGetsATimeSpan) {
  const gpr_timespec span = Deadline::After(absl::Hours(1)).ToGrpc();
  EXPECT_EQ(span.clock_type, GPR_TIMESPAN);
  EXPECT_GT(span.tv_sec, 3500);
  EXPECT_LE(span.tv_sec, 3600);
}

}  // namespace
}  // namespace paramshard::internal
