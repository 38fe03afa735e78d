#include "server/edge/caller_timeout.h"

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

constexpr CallerTimeout kTimeout{.longest_wait = absl::Seconds(100), .bytes_per_second = 1024};

TEST(CallerTimeoutTest, WaitsAddUp) {
  CallerTimeLeft timeout(kTimeout);
  EXPECT_EQ(timeout.left(), absl::Seconds(100));
  for (int message = 0; message < 30; ++message) timeout.Spend(absl::Seconds(4), 1);
  EXPECT_EQ(timeout.left(), absl::Seconds(10)) << "small messages count as a KiB, here a second";
  timeout.Spend(absl::Seconds(60), 1);
  EXPECT_EQ(timeout.left(), absl::ZeroDuration());
}

TEST(CallerTimeoutTest, BytesEarnTimeBackButNoMoreThanThereWas) {
  CallerTimeLeft timeout(kTimeout);
  timeout.Spend(absl::Seconds(50), 20 * 1024);
  EXPECT_EQ(timeout.left(), absl::Seconds(70));
  timeout.Spend(absl::ZeroDuration(), 1024 * 1024);
  EXPECT_EQ(timeout.left(), absl::Seconds(100));
}

TEST(CallerTimeoutTest, WhoKeepsThePaceIsNeverLate) {
  CallerTimeLeft timeout(kTimeout);
  for (int message = 0; message < 100'000; ++message) {
    timeout.Spend(absl::Seconds(4), 4 * 1024);
    ASSERT_EQ(timeout.left(), absl::Seconds(100));
  }
}

}  // namespace
}  // namespace paramshard::server
