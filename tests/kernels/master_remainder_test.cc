#include "kernels/optim/master_remainder.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/effort.h"

namespace paramshard {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(MasterRemainderTest, JoiningGivesEveryBitBack) {
  constexpr uint64_t kPrimeStride = 97;
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += kPrimeStride * Stride()) {
    const uint32_t bits = static_cast<uint32_t>(i);
    ASSERT_EQ(std::bit_cast<uint32_t>(Join(Split(FromBits(bits)))), bits);
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(Join(Split(FromBits(0xffffffffu)))), 0xffffffffu);
}

// The formula as it is written, with its two branches.
TEST(MasterRemainderTest, SplitFollowsTheFormula) {
  constexpr uint64_t kPrimeStride = 9973;
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += kPrimeStride) {
    const uint32_t bits = static_cast<uint32_t>(i);
    uint16_t high = static_cast<uint16_t>(bits >> 16);
    const int16_t low = std::bit_cast<int16_t>(static_cast<uint16_t>(bits & 0xffff));
    if (low < 0) ++high;
    ASSERT_EQ(Split(FromBits(bits)).weight, high);
    ASSERT_EQ(Split(FromBits(bits)).remainder, low);
  }
}

TEST(MasterRemainderTest, WeightIsTheNearestBFloat16ButForTies) {
  RandomFloats random(31);
  for (float value : random.Normal(10000, 1.0f)) {
    if ((std::bit_cast<uint32_t>(value) & 0xffff) == 0x8000) continue;
    ASSERT_EQ(Split(value).weight, EncodeBFloat16(value));
  }
  EXPECT_EQ(Split(FromBits(0x3f808000u)).weight, 0x3f81);
  EXPECT_EQ(EncodeBFloat16(FromBits(0x3f808000u)), 0x3f80);
}

TEST(MasterRemainderTest, ArraysAreSplitElementByElement) {
  RandomFloats random(32);
  const std::vector<float> masters = random.AnyBits(1003);
  // One byte past an aligned address: planes may lie anywhere.
  std::vector<uint8_t> weights(2 * 1003 + 1);
  std::vector<int16_t> remainders(1003);
  SplitMasters(masters.data(), 1003, weights.data() + 1, remainders.data());
  std::vector<float> joined(1003);
  JoinMasters(weights.data() + 1, remainders.data(), 1003, joined.data());
  for (size_t i = 0; i < masters.size(); ++i) {
    ASSERT_EQ(remainders[i], Split(masters[i]).remainder);
    ASSERT_EQ(std::bit_cast<uint32_t>(joined[i]), std::bit_cast<uint32_t>(masters[i]));
  }
}

}  // namespace
}  // namespace paramshard
