#include "server/base/thread.h"

#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StartThreadTest, RunsTheBody) {
  std::atomic<bool> ran{false};
  absl::StatusOr<std::thread> thread = StartThread("the test", [&] { ran = true; });
  ASSERT_OK(thread.status());
  thread->join();
  EXPECT_TRUE(ran);
}

TEST(StartThreadTest, AShortageIsAStatusThatNamesThePurpose) {
  {
    const ThreadShortage shortage(1);
    absl::StatusOr<std::thread> first = StartThread("the first", [] {});
    ASSERT_OK(first.status());
    first->join();
    EXPECT_THAT(StartThread("the second", [] { ADD_FAILURE() << "it never runs"; }).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("the second"), HasSubstr("ulimit -u"))));
  }
  absl::StatusOr<std::thread> later = StartThread("the third", [] {});
  ASSERT_OK(later.status()) << "the shortage is over";
  later->join();
}

}  // namespace
}  // namespace paramshard::server
