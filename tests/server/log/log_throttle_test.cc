#include "server/log/log_throttle.h"

#include <optional>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

class SetClock final : public Clock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += absl::ToChronoNanoseconds(by); }

 private:
  SteadyTime now_ = SteadyNow();
};

TEST(LogThrottleTest, OneLineForEachIntervalStandsForAllEvents) {
  SetClock clock;
  LogThrottle throttle(absl::Minutes(1), clock);
  EXPECT_EQ(throttle.Pass(), 1);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(throttle.Pass(), std::nullopt);
  clock.Advance(absl::Seconds(59));
  EXPECT_EQ(throttle.Pass(), std::nullopt);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(throttle.Pass(), 1002);
  EXPECT_EQ(throttle.Pass(), std::nullopt);
  clock.Advance(absl::Hours(1));
  EXPECT_EQ(throttle.Pass(), 2);
}

}  // namespace
}  // namespace paramshard::server
