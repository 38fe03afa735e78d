#include "server/observe/log.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The level is the process's own.
class LogTest : public testing::Test {
 protected:
  LogTest() { ConfigureLog(LogFormat::kText, LogLevel::kInfo); }
  ~LogTest() override { ConfigureLog(LogFormat::kText, LogLevel::kInfo); }
};

TEST_F(LogTest, LevelsAreFoundByTheirNames) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    EXPECT_EQ(FindLogLevel(LogLevelName(level)), level);
  }
  EXPECT_EQ(FindLogLevel("loud"), std::nullopt);
  EXPECT_EQ(FindLogLevel(""), std::nullopt);
}

TEST_F(LogTest, AChangedLevelHoldsForTheLinesThatFollow) {
  testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "early");
  EXPECT_EQ(ChangeLogLevel(LogLevel::kDebug, "somebody"), LogLevel::kInfo);
  EXPECT_EQ(LeastLogLevel(), LogLevel::kDebug);
  Log(LogLevel::kDebug, "between");
  EXPECT_EQ(ChangeLogLevel(LogLevel::kError, "somebody else"), LogLevel::kDebug);
  Log(LogLevel::kWarning, "late");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(Not(HasSubstr("early")), HasSubstr("debug between"), Not(HasSubstr("late")),
                    HasSubstr("warning log level changed from=info to=debug caller=somebody\n"),
                    HasSubstr("warning log level changed from=debug to=error caller=\"somebody else\"\n")));
}

std::vector<int64_t> Events() {
  std::vector<int64_t> events;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    events.push_back(LoggedEvents(level));
  }
  return events;
}

TEST_F(LogTest, EventsAreCountedByLevelWithThoseThatALineStandsFor) {
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
