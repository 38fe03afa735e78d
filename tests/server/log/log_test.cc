#include "server/log/log.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

std::vector<int64_t> Events() {
  std::vector<int64_t> events;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    events.push_back(LoggedEvents(level));
  }
  return events;
}

TEST(LogTest, EventsAreCountedByLevelWithThoseThatALineStandsFor) {
  std::vector<int64_t> expected = Events();
  testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "one");
  Log(LogLevel::kError, "others", {}, /*count=*/41);
  Log(LogLevel::kDebug, "below the least level that is written");
  testing::internal::GetCapturedStderr();
  expected[1] += 1;
  expected[3] += 41;
  EXPECT_EQ(Events(), expected);
}

}  // namespace
}  // namespace paramshard::server
