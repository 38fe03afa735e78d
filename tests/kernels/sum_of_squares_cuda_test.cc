#include "kernels/reduce/sum_of_squares.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reduce/gradient_sum_cuda.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

// Tasks without sources: arrays that are read alone.
class SumOfSquaresCudaTest : public GpuTest {
 protected:
  void ExpectSame(const std::vector<std::vector<float>>& arrays) {
    std::vector<DeviceArray<float>> on_device;
    std::vector<GradientSumTask> tasks;
    int64_t elements = 0;
    for (const std::vector<float>& values : arrays) {
      on_device.emplace_back(values);
      GradientSumTask& task = tasks.emplace_back();
      task.count = static_cast<int64_t>(values.size());
      task.accumulator = on_device.back().data();
      elements += task.count;
    }
    ASSERT_OK_AND_ASSIGN(SquareSummer summer,
                         SquareSummer::Create(kDevice, static_cast<int64_t>(arrays.size()), elements));
    ASSERT_OK_AND_ASSIGN(const std::vector<SquareSum> sums, summer.Run(tasks, stream()));
    ASSERT_EQ(sums.size(), arrays.size());
    for (size_t i = 0; i < arrays.size(); ++i) {
      const SquareSum expected = SumOfSquares(arrays[i].data(), static_cast<int64_t>(arrays[i].size()));
      EXPECT_EQ(sums[i].non_finite, expected.non_finite) << i;
      if (expected.non_finite > 0) continue;
      EXPECT_EQ(sums[i].sum, expected.sum) << i;
    }
  }
};

TEST_F(SumOfSquaresCudaTest, SumsAreTheHosts) {
  RandomFloats random(61);
  std::vector<std::vector<float>> arrays;
  for (int64_t count : {0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 8192, 100000, 1000003, 0, 5}) {
    arrays.push_back(random.Normal(count, 3.0f));
  }
  ExpectSame(arrays);
}

TEST_F(SumOfSquaresCudaTest, ManyChunksAreSummedInThreeLevels) {
  std::vector<float> values(4096 * 4096 + 5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i % 977);
  ExpectSame({values, {1.0f}});
}

TEST_F(SumOfSquaresCudaTest, ExtremeValuesAreExact) {
  ExpectSame({{std::numeric_limits<float>::max()}, {0x1p-149f}, {-0.0f}});
}

TEST_F(SumOfSquaresCudaTest, NonFiniteElementsAreCounted) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(10000, 1.0f);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[4096] = infinity;
  values[9999] = -infinity;
  ExpectSame({values, {1.0f}, RandomFloats(62).AnyBits(50000)});
}

TEST_F(SumOfSquaresCudaTest, NoArraysAreFine) { ExpectSame({}); }

}  // namespace
}  // namespace paramshard::gpu
