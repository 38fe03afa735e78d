#include "server/process/exit_watchdog.h"

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/exit_codes.h"

namespace paramshard::server {
namespace {

TEST(ExitWatchdogTest, AnEndThatTakesTooLongIsGivenUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ExitWatchdog exit_watchdog(absl::Milliseconds(1), kExitStuck);
        absl::Notification never;
        never.WaitForNotification();
      },
      testing::ExitedWithCode(kExitStuck), "shutdown timed out waited=1ms");
}

TEST(ExitWatchdogTest, AnEndInTimeIsNobodysConcern) { const ExitWatchdog exit_watchdog(absl::Hours(1), kExitStuck); }

}  // namespace
}  // namespace paramshard::server
