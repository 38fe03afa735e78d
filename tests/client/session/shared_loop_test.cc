#include "client/internal/shared_loop.h"

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

absl::Status Nothing() { return absl::OkStatus(); }

TEST(SharedLoopTest, EachIndexHasOneCall) {
  for (const int threads : {1, 2, 7}) {
    for (const int64_t count : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      EXPECT_OK(RunShared({.count = count,
                           .threads = threads,
                           .body =
                               [&](int64_t i) {
                                 ++calls[i];
                                 return absl::OkStatus();
                               },
                           .ask = Nothing}));
      for (const std::atomic<int>& each : calls) EXPECT_EQ(each, 1);
    }
  }
}

TEST(SharedLoopTest, TheErrorOfTheLeastIndexIsReturned) {
  for (const int threads : {1, 2, 7}) {
    const absl::Status status =
        RunShared({.count = 1000,
                   .threads = threads,
                   .body = [&](int64_t i) { return i < 30 ? absl::OkStatus() : absl::DataLossError(absl::StrCat(i)); },
                   .ask = Nothing});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "30"));
  }
}

TEST(SharedLoopTest, AnInterruptionEndsALongLoop) {
  for (const int threads : {1, 3}) {
    const absl::Status status = RunShared({.count = int64_t{1} << 62,
                                           .threads = threads,
                                           .body = [&](int64_t) { return absl::OkStatus(); },
                                           .ask = [] { return absl::CancelledError("stop"); }});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, "stop"));
  }
}

TEST(SharedLoopTest, ThereIsAThread) {
  EXPECT_GE(SharedLoopThreads(), 1);
  EXPECT_LE(SharedLoopThreads(), 16);
}

}  // namespace
}  // namespace paramshard::internal
