#include "server/edge/patience.h"

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

constexpr Patience kPatience{.longest_wait = absl::Seconds(100), .bytes_per_second = 1024};

TEST(PatienceTest, WaitsAddUp) {
  PatienceLeft patience(kPatience);
  EXPECT_EQ(patience.left(), absl::Seconds(100));
  for (int message = 0; message < 30; ++message) patience.Spend(absl::Seconds(4), 1);
  EXPECT_EQ(patience.left(), absl::Seconds(10)) << "small messages count as a KiB, here a second";
  patience.Spend(absl::Seconds(60), 1);
  EXPECT_EQ(patience.left(), absl::ZeroDuration());
}

TEST(PatienceTest, BytesEarnTimeBackButNoMoreThanThereWas) {
  PatienceLeft patience(kPatience);
  patience.Spend(absl::Seconds(50), 20 * 1024);
  EXPECT_EQ(patience.left(), absl::Seconds(70));
  patience.Spend(absl::ZeroDuration(), 1024 * 1024);
  EXPECT_EQ(patience.left(), absl::Seconds(100));
}

TEST(PatienceTest, WhoKeepsThePaceIsNeverLate) {
  PatienceLeft patience(kPatience);
  for (int message = 0; message < 100'000; ++message) {
    patience.Spend(absl::Seconds(4), 4 * 1024);
    ASSERT_EQ(patience.left(), absl::Seconds(100));
  }
}

}  // namespace
}  // namespace paramshard::server
