#include "server/device/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/compute_device.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(DeviceTest, NamesAndNumbersGoTogether) {
  ASSERT_OK_AND_ASSIGN(const Device device, ParseDevice("cpu:12"));
  EXPECT_EQ(device, (Device{.kind = DeviceKind::kCpu, .index = 12}));
  EXPECT_EQ(device.Name(), "cpu:12");
  ASSERT_OK_AND_ASSIGN(const Device gpu, ParseDevice("cuda:3"));
  EXPECT_EQ(gpu, (Device{.kind = DeviceKind::kCuda, .index = 3}));
  EXPECT_EQ(gpu.Name(), "cuda:3");
}

TEST(DeviceTest, WhatIsNoDeviceIsRefused) {
  for (const char* name : {"", "cpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1x", "cpu:99999999999", "gpu:0", "0", "cuda",
                           "cuda:", "cuda:-1", "cuda:0x1"}) {
    EXPECT_THAT(ParseDevice(name), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cpu:I"))) << name;
  }
}

TEST(DeviceTest, CpuAndCudaDevicesDoNotMix) {
  const Device devices[] = {{.kind = DeviceKind::kCpu}, {.kind = DeviceKind::kCuda}};
  EXPECT_THAT(OpenDevices(devices), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got both")));
}

TEST(DeviceTest, AGpuThatIsNotThereIsRefused) {
  const Device devices[] = {{.kind = DeviceKind::kCuda, .index = 4096}};
  EXPECT_THAT(OpenDevices(devices), StatusIs(AnyOf(absl::StatusCode::kFailedPrecondition,  // no driver, no such GPU
                                                   absl::StatusCode::kUnimplemented),      // no CUDA in this build
                                             HasSubstr("cuda:4096")));
}

}  // namespace
}  // namespace paramshard::server
