#include "server/observe/log_throttle.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

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

TEST(LogThrottleTest, AnIntervalMayHaveSeveralLines) {
  SetClock clock;
  LogThrottle throttle(absl::Minutes(1), clock, /*lines=*/2);
  EXPECT_EQ(throttle.Pass(), 1);
  clock.Advance(absl::Seconds(59));
  EXPECT_EQ(throttle.Pass(), 1);
  EXPECT_EQ(throttle.Pass(), std::nullopt);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(throttle.Pass(), 2);
  EXPECT_EQ(throttle.Pass(), 1);
  EXPECT_EQ(throttle.Pass(), std::nullopt);
}

TEST(ThrottledLogTest, EachEventHasItsLines) {
  SetClock clock;
  ThrottledLog log(clock);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) log.Write(LogLevel::kInfo, "somebody has come", {{"i", absl::StrCat(i)}});
  log.Write(LogLevel::kInfo, "somebody has gone", {});
  clock.Advance(absl::Minutes(1));
  log.Write(LogLevel::kInfo, "somebody has come", {{"i", "last"}});
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), ThrottledLog::kLinesAMinute + 2) << lines;
  EXPECT_THAT(lines, HasSubstr("somebody has gone\n"));
  EXPECT_THAT(lines, HasSubstr(absl::StrCat("i=last count=", 1001 - ThrottledLog::kLinesAMinute, "\n")));
}

}  // namespace
}  // namespace paramshard::server
