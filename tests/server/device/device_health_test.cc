#include "server/device/device_health.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Status kFirst = absl::InternalError("first");
const absl::Status kSecond = absl::InternalError("second");

TEST(DeviceHealthTest, TheFirstErrorStaysAndIsToldOnce) {
  std::vector<absl::Status> told;
  DeviceHealth health;
  EXPECT_OK(health.status());
  health.SetListener([&](const absl::Status& why) { told.push_back(why); });
  EXPECT_THAT(told, IsEmpty());
  health.Break(kFirst);
  health.Break(kSecond);
  EXPECT_EQ(health.status(), kFirst);
  EXPECT_THAT(told, ElementsAre(kFirst));
}

TEST(DeviceHealthTest, AListenerThatComesLateIsToldAtOnce) {
  std::vector<absl::Status> told;
  DeviceHealth health;
  health.Break(kFirst);
  health.SetListener([&](const absl::Status& why) { told.push_back(why); });
  EXPECT_THAT(told, ElementsAre(kFirst));
}

TEST(DeviceHealthTest, WhoHasLeftIsNotTold) {
  std::vector<absl::Status> told;
  DeviceHealth health;
  health.SetListener([&](const absl::Status& why) { told.push_back(why); });
  health.SetListener(nullptr);
  health.Break(kFirst);
  EXPECT_THAT(told, IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
