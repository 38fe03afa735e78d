#include "kernels/base/polling.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

// Longer than a test may take: a test that waits for it hangs.
constexpr absl::Duration kLong = absl::Hours(1);

TEST(PollTest, LooksUntilItIsDone) {
  for (const absl::Duration spinning : {absl::ZeroDuration(), kLong}) {
    int looks = 0;
    ASSERT_OK_AND_ASSIGN(const bool done, Poll({.timeout = kLong, .spinning = spinning},
                                               [&]() -> absl::StatusOr<bool> { return ++looks == 5; }));
    EXPECT_TRUE(done);
    EXPECT_EQ(looks, 5);
  }
}

TEST(PollTest, WhatIsDoneIsDoneWithoutAnyTimeToo) {
  ASSERT_OK_AND_ASSIGN(const bool done,
                       Poll({.timeout = absl::ZeroDuration()}, []() -> absl::StatusOr<bool> { return true; }));
  EXPECT_TRUE(done);
}

TEST(PollTest, GivesUpAfterTheTimeout) {
  for (const absl::Duration spinning : {absl::ZeroDuration(), kLong}) {
    int looks = 0;
    ASSERT_OK_AND_ASSIGN(const bool done, Poll({.timeout = absl::Milliseconds(2), .spinning = spinning},
                                               [&]() -> absl::StatusOr<bool> { return ++looks, false; }));
    EXPECT_FALSE(done);
    EXPECT_GE(looks, 2);
  }
}

TEST(PollTest, AFailureEndsIt) {
  int looks = 0;
  EXPECT_THAT(Poll({.timeout = kLong},
                   [&]() -> absl::StatusOr<bool> {
                     if (++looks == 3) return absl::InternalError("broken");
                     return false;
                   }),
              StatusIs(absl::StatusCode::kInternal, "broken"));
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace paramshard
