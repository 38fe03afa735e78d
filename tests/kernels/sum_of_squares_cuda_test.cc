#include "kernels/reduce/sum_of_squares_cuda.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/status_matchers.h"

namespace paramshard::gpu {
namespace {

class SquareSumPlanTest : public GpuTest {
 protected:
  // Sums the active arrays and compares with the host.
  void ExpectSame(const std::vector<std::vector<float>>& arrays, const std::vector<std::vector<bool>>& runs) {
    std::vector<DeviceArray<float>> on_device;
    std::vector<SquareSumExtent> extents;
    for (const std::vector<float>& values : arrays) {
      on_device.emplace_back(values);
      extents.push_back({on_device.back().data(), static_cast<int64_t>(values.size())});
    }
    ASSERT_OK_AND_ASSIGN(SquareSumPlan plan, SquareSumPlan::Create(kDevice, extents));
    for (const std::vector<bool>& active : runs) {
      ASSERT_OK_AND_ASSIGN(const std::vector<SquareSum> sums, plan.Run(active, stream()));
      ASSERT_EQ(sums.size(), arrays.size());
      for (size_t i = 0; i < arrays.size(); ++i) {
        SquareSum expected;
        if (active[i]) expected = SumOfSquares(arrays[i].data(), static_cast<int64_t>(arrays[i].size()));
        EXPECT_EQ(sums[i].non_finite, expected.non_finite) << i;
        if (expected.non_finite > 0) continue;
        EXPECT_EQ(sums[i].sum, expected.sum) << i;
      }
    }
  }
};

TEST_F(SquareSumPlanTest, SumsAreTheHosts) {
  RandomFloats random(61);
  std::vector<std::vector<float>> arrays;
  for (int64_t count : {0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 8192, 100000, 1000003, 0, 5}) {
    arrays.push_back(random.Normal(count, 3.0f));
  }
  std::vector<bool> every_third(arrays.size());
  for (size_t i = 0; i < arrays.size(); i += 3) every_third[i] = true;
  const std::vector<bool> all(arrays.size(), true);
  ExpectSame(arrays, {all, every_third, std::vector<bool>(arrays.size(), false), all});
}

TEST_F(SquareSumPlanTest, ManyChunksAreSummedInThreeLevels) {
  std::vector<float> values(4096 * 4096 + 5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i % 977);
  ExpectSame({values, {1.0f}}, {{true, true}});
}

TEST_F(SquareSumPlanTest, ExtremeValuesAreExact) {
  ExpectSame({{std::numeric_limits<float>::max()}, {0x1p-149f}, {-0.0f}}, {{true, true, true}});
}

TEST_F(SquareSumPlanTest, NonFiniteElementsAreCounted) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(10000, 1.0f);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[4096] = infinity;
  values[9999] = -infinity;
  ExpectSame({values, {1.0f}, RandomFloats(62).AnyBits(50000)}, {{true, true, true}, {false, true, true}});
}

TEST_F(SquareSumPlanTest, NoArraysAreFine) { ExpectSame({}, {{}}); }

}  // namespace
}  // namespace paramshard::gpu
