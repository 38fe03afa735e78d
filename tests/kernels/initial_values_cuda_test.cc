#include "kernels/random/initial_values_cuda.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class FillInitialValuesTest : public GpuTest {};

TEST_F(FillInitialValuesTest, ValuesAreTheHosts) {
  constexpr int64_t kCount = 1000003;
  const InitialValue values[] = {{Initializer::kZeros},
                                 {Initializer::kOnes},
                                 {Initializer::kConstant, -0.25f},
                                 {Initializer::kNormal, 0.5f, 0.02f},
                                 {Initializer::kNormal, 0.0f, 0.0f},
                                 {Initializer::kUniform, -1.0f, 3.0f},
                                 {Initializer::kUniform, 1.0f, 1.0000001f},
                                 {Initializer::kTruncatedNormal, 0.0f, 0.02f, -0.06f, 0.06f},
                                 {Initializer::kTruncatedNormal, -3.0f, 1.0f, 2.0f, 9.0f},
                                 {Initializer::kTruncatedNormal, 0.5f, 1.0f, -100.0f, 100.0f},
                                 {.kind = Initializer::kNormal, .b = 0.02f, .zero_begin = 5000, .zero_end = 900001}};
  for (const InitialValue& value : values) {
    for (int64_t first : {int64_t{0}, (int64_t{1} << 32) - 5}) {
      const DeviceArray<float> out(std::vector<float>(kCount, 7.0f));
      ASSERT_OK(FillInitialValues(value, 0x123456789abcdefull, 3, first, kCount, out.data(), stream()));
      Synchronize();
      std::vector<float> expected(kCount);
      paramshard::FillInitialValues(value, 0x123456789abcdefull, 3, first, kCount, expected.data());
      EXPECT_TRUE(SameBytes(AsBytes(expected), AsBytes(out.Download()))) << static_cast<int>(value.kind);
    }
  }
}

TEST_F(FillInitialValuesTest, NumbersThatMakeNoSenseAreRefused) {
  EXPECT_THAT(FillInitialValues({Initializer::kUniform, 1.0f, 1.0f}, 1, 0, 0, 1, nullptr, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("a < b")));
  EXPECT_OK(FillInitialValues({Initializer::kOnes}, 1, 0, 0, 0, nullptr, stream()));
}

}  // namespace
}  // namespace paramshard::gpu
