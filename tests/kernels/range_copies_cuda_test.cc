#include "kernels/copy/range_copies_cuda.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class CopyRangesTest : public GpuTest {
 protected:
  // Copies `count` ranges of all sizes and alignments from one array to another, and checks every byte.
  void CheckCopies(int count, RandomFloats& random) {
    std::vector<int64_t> gaps, bytes;
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
      gaps.push_back(random.Integer(0, 39));
      bytes.push_back(random.Integer(0, 3) == 0 ? 0 : random.Integer(1, i % 8 == 0 ? 300'000 : 5'000));
      total += gaps.back() + bytes.back();
    }
    std::vector<uint8_t> source(total);
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random.Integer(0, 255));
    std::vector<uint8_t> expected(total, 0x11);
    const DeviceArray<uint8_t> device_source(source);
    const DeviceArray<uint8_t> device_target(expected);
    std::vector<RangeCopy> copies;
    int64_t offset = 0;
    for (int i = 0; i < count; ++i) {
      offset += gaps[i];
      copies.push_back({device_target.data() + offset, device_source.data() + offset, bytes[i]});
      std::copy_n(source.begin() + offset, bytes[i], expected.begin() + offset);
      offset += bytes[i];
    }
    ASSERT_OK(CopyRanges(copies, stream()));
    Synchronize();
    EXPECT_TRUE(device_target.Download() == expected);
  }
};

// Tests counts around the number of ranges in one launch of either kernel.
TEST_F(CopyRangesTest, EveryByteArrivesAndNoOther) {
  const uint64_t seed = FirstSeed(83);
  RandomFloats random(seed);
  for (const int count : {0, 1, 7, 15, 16, 17, 119, 120, 121, 260}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", count, " ranges"));
    CheckCopies(count, random);
  }
}

TEST_F(CopyRangesTest, RangesOfNoBytesAreNoWork) {
  const RangeCopy nothing[3] = {};
  EXPECT_OK(CopyRanges(nothing, stream()));
  Synchronize();
}

}  // namespace
}  // namespace paramshard::gpu
