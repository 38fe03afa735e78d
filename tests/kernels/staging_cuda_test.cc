#include "kernels/gpu/staging.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

using StagingTest = GpuTest;

constexpr int64_t kLaneBytes = 1 << 16;

std::vector<uint8_t> Bytes(int64_t count, int seed) {
  std::vector<uint8_t> bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((i * 131 + seed * 17) >> 3);
  return bytes;
}

TEST_F(StagingTest, BytesComeInOrderInPiecesOfALane) {
  ASSERT_OK_AND_ASSIGN(const auto lanes, StagingLanes::Create(kDevice, 2, kLaneBytes));
  for (const int64_t count : {int64_t{0}, int64_t{1}, kLaneBytes, kLaneBytes + 1, 5 * kLaneBytes - 3}) {
    const DeviceArray<uint8_t> array(Bytes(count, 1));
    std::vector<uint8_t> got;
    ASSERT_OK(lanes->Read(array.data(), count, [&](absl::Span<const uint8_t> piece) {
      EXPECT_LE(static_cast<int64_t>(piece.size()), kLaneBytes);
      got.insert(got.end(), piece.begin(), piece.end());
    }));
    EXPECT_EQ(got, Bytes(count, 1));
  }
}

TEST_F(StagingTest, WrittenBytesAreThereWhenTheCallReturns) {
  ASSERT_OK_AND_ASSIGN(const auto lanes, StagingLanes::Create(kDevice, 1, kLaneBytes));
  for (const int64_t count : {int64_t{1}, kLaneBytes, 3 * kLaneBytes + 7}) {
    const DeviceArray<uint8_t> array(std::vector<uint8_t>(count, 0));
    ASSERT_OK(lanes->Write(array.data(), Bytes(count, 2)));
    EXPECT_EQ(array.Download(), Bytes(count, 2));
  }
}

TEST_F(StagingTest, MoreCallersThanLanesTakeTurns) {
  constexpr int kCallers = 8;
  constexpr int64_t kCount = 3 * kLaneBytes + 5;
  ASSERT_OK_AND_ASSIGN(const auto lanes, StagingLanes::Create(kDevice, 3, kLaneBytes));
  std::vector<DeviceArray<uint8_t>> arrays;
  for (int i = 0; i < kCallers; ++i) arrays.emplace_back(std::vector<uint8_t>(kCount, 0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn) {
        EXPECT_OK(lanes->Write(arrays[i].data(), Bytes(kCount, i + turn)));
        std::vector<uint8_t> got;
        EXPECT_OK(lanes->Read(arrays[i].data(), kCount, [&](absl::Span<const uint8_t> piece) {
          got.insert(got.end(), piece.begin(), piece.end());
        }));
        EXPECT_EQ(got, Bytes(kCount, i + turn));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace paramshard::gpu
