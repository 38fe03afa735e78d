#include "kernels/optim/master_remainder_cuda.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optim/master_remainder.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class MasterRemainderTest : public GpuTest {};

TEST_F(MasterRemainderTest, MastersAreSplitAndJoinedAsOnTheHost) {
  RandomFloats random(61);
  for (int64_t count : {0, 1, 255, 257, 100000}) {
    const std::vector<float> values = random.AnyBits(count);
    std::vector<uint8_t> expected_upper(count * 2);
    std::vector<int16_t> expected_remainder(count);
    SplitMasters(values.data(), count, expected_upper.data(), expected_remainder.data());
    const DeviceArray<float> masters(values);
    const DeviceArray<uint16_t> upper{std::vector<uint16_t>(count)};
    const DeviceArray<int16_t> remainder{std::vector<int16_t>(count)};
    const DeviceArray<float> joined{std::vector<float>(count)};
    ASSERT_OK(SplitMaster(masters.data(), count, upper.data(), remainder.data(), stream()));
    ASSERT_OK(JoinMaster(upper.data(), remainder.data(), count, joined.data(), stream()));
    Synchronize();
    EXPECT_TRUE(SameBytes(expected_upper, AsBytes(upper.Download())));
    EXPECT_TRUE(SameBytes(AsBytes(expected_remainder), AsBytes(remainder.Download())));
    EXPECT_TRUE(SameBytes(AsBytes(values), AsBytes(joined.Download())));
  }
}

}  // namespace
}  // namespace paramshard::gpu
