#include "common/rpc/durations.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace paramshard {
namespace {

TEST(DurationsTest, EveryNanosecondArrives) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Seconds(61) + absl::Nanoseconds(999'999'999),
        -absl::Milliseconds(1500), absl::Hours(24 * 365 * 1000)}) {
    EXPECT_EQ(DurationFromProto(DurationToProto(duration)), duration);
  }
}

TEST(DurationsTest, WhatAMessageCannotSayBecomesTheLongestThatItCan) {
  EXPECT_EQ(DurationToProto(absl::InfiniteDuration()).seconds(), 315'576'000'000);
  EXPECT_EQ(DurationToProto(-absl::InfiniteDuration()).seconds(), -315'576'000'000);
  EXPECT_EQ(DurationToProto(absl::InfiniteDuration()).nanos(), 0);
}

TEST(DurationsTest, AMessageMayHoldAnything) {
  google::protobuf::Duration message;
  message.set_seconds(std::numeric_limits<int64_t>::max());
  message.set_nanos(std::numeric_limits<int32_t>::max());
  EXPECT_GT(DurationFromProto(message), absl::Hours(24 * 365 * 10'000));
  message.set_seconds(std::numeric_limits<int64_t>::min());
  message.set_nanos(std::numeric_limits<int32_t>::min());
  EXPECT_LT(DurationFromProto(message), -absl::Hours(24 * 365 * 10'000));
}

}  // namespace
}  // namespace paramshard
