#include "kernels/gpu/faults.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gpu/status.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A device that no machine has, because a broken device stays broken for this process. No GPU is needed.
constexpr int kDevice = 1000;
constexpr int kOther = 1001;

TEST(FaultsTest, ErrorsThatStayAreToldFromThoseThatPass) {
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable, cudaErrorLaunchFailure,
                                  cudaErrorNvlinkUncorrectable, cudaErrorMisalignedAddress, cudaErrorAssert}) {
    EXPECT_TRUE(IsFault(error)) << error;
  }
  for (const cudaError_t error : {cudaSuccess, cudaErrorNotReady, cudaErrorMemoryAllocation, cudaErrorInvalidValue,
                                  cudaErrorNoDevice, cudaErrorInsufficientDriver, cudaErrorInvalidDevice}) {
    EXPECT_FALSE(IsFault(error)) << error;
  }
}

TEST(FaultsTest, TheFirstErrorThatStaysBreaksItsDeviceAndIsWatched) {
  std::vector<absl::Status> told, told_of_other;
  const FaultWatch watch(kDevice, [&](const absl::Status& why) { told.push_back(why); });
  const FaultWatch watch_of_other(kOther, [&](const absl::Status& why) { told_of_other.push_back(why); });
  EXPECT_THAT(ToStatus(cudaErrorMemoryAllocation, "allocate", kDevice), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(FaultOf(kDevice));
  const absl::Status fault = ToStatus(cudaErrorIllegalAddress, "wait for a step", kDevice);
  EXPECT_THAT(fault, StatusIs(absl::StatusCode::kInternal,
                              AllOf(HasSubstr("cuda:1000 is broken: wait for a step: "),
                                    HasSubstr("cudaErrorIllegalAddress"), HasSubstr("restart gpu_faults_test"))));
  EXPECT_EQ(ToStatus(cudaErrorLaunchFailure, "launch", kDevice), fault);
  EXPECT_EQ(ReportFault(kDevice, "it is slow"), fault);
  EXPECT_EQ(FaultOf(kDevice), fault);
  EXPECT_OK(FaultOf(kOther));
  EXPECT_THAT(told, ElementsAre(fault));
  EXPECT_THAT(told_of_other, IsEmpty());
  std::vector<absl::Status> told_late;
  const FaultWatch late(kDevice, [&](const absl::Status& why) { told_late.push_back(why); });
  EXPECT_THAT(told_late, ElementsAre(fault));
}

TEST(FaultsTest, AWatchEndsWithItsObject) {
  std::vector<absl::Status> told;
  std::optional<FaultWatch> watch(std::in_place, kOther, [&](const absl::Status& why) { told.push_back(why); });
  watch.reset();
  EXPECT_THAT(ReportFault(kOther, "it is gone"), StatusIs(absl::StatusCode::kInternal, HasSubstr("it is gone")));
  EXPECT_THAT(told, IsEmpty());
}

}  // namespace
}  // namespace paramshard::gpu
