#include "server/world/disk_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/time/clock.h"
#include "server/observe/log.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

TEST(DiskWatchTest, SaysThatACallLastsAndNothingOfOthers) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DiskWatch> watch, DiskWatch::Start("a folder", absl::Milliseconds(5)));
  const int64_t before = LoggedEvents(LogLevel::kWarning);
  {
    const DiskWatch::Call call(watch.get());
    // The test's timeout bounds it.
    while (LoggedEvents(LogLevel::kWarning) < before + 2) {
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DiskWatch> patient, DiskWatch::Start("a folder", absl::Hours(1)));
  const int64_t then = LoggedEvents(LogLevel::kWarning);
  { const DiskWatch::Call call(patient.get()); }
  EXPECT_EQ(LoggedEvents(LogLevel::kWarning), then);
}

}  // namespace
}  // namespace paramshard::server
