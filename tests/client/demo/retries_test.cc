#include "client/demo/retries.h"

#include "gtest/gtest.h"

namespace paramshard::demo {
namespace {

TEST(RetriesTest, PausesGrowUpToABound) {
  Retries retries;
  const absl::Status gone = absl::UnavailableError("gone");
  absl::Duration all = absl::ZeroDuration(), last = absl::ZeroDuration();
  for (int i = 0; i < Retries::kMax; ++i) {
    const std::optional<absl::Duration> pause = retries.Next(gone);
    ASSERT_TRUE(pause.has_value()) << i;
    EXPECT_GE(*pause, last);
    EXPECT_LE(*pause, absl::Seconds(1));
    all += last = *pause;
  }
  EXPECT_EQ(last, absl::Seconds(1));
  EXPECT_LT(all, absl::Seconds(20));
  EXPECT_EQ(retries.Next(gone), std::nullopt);
}

TEST(RetriesTest, ASuccessBeginsTheCountAnew) {
  Retries retries;
  const std::optional<absl::Duration> first = retries.Next(absl::AbortedError("left"));
  while (retries.Next(absl::AbortedError("left")).has_value()) {
  }
  retries.Reset();
  EXPECT_EQ(retries.Next(absl::AbortedError("left")), first);
}

TEST(RetriesTest, ErrorsThatDoNotPassAreNotTriedAgain) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "text");
    EXPECT_EQ(Retries().Next(status).has_value(), absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
  }
}

}  // namespace
}  // namespace paramshard::demo
