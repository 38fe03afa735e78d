#include "server/device/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

TEST(DeviceTest, NamesAndNumbersGoTogether) {
  ASSERT_OK_AND_ASSIGN(const Device device, ParseDevice("cpu:12"));
  EXPECT_EQ(device, (Device{.kind = DeviceKind::kCpu, .index = 12}));
  EXPECT_EQ(device.Name(), "cpu:12");
}

TEST(DeviceTest, WhatIsNoDeviceIsRefused) {
  for (const char* name : {"", "cpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1x", "cpu:99999999999", "gpu:0", "0"}) {
    EXPECT_THAT(ParseDevice(name), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cpu:I"))) << name;
  }
}

TEST(DeviceTest, ADeviceThatThisBuildDoesNotServeIsUnimplemented) {
  EXPECT_THAT(ParseDevice("cuda:0"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cuda:0")));
}

}  // namespace
}  // namespace paramshard::server
