#include "kernels/reduce/gradient_sum.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

std::vector<float> Sum(const std::vector<std::vector<float>>& sources, bool overwrite, std::vector<float> accumulator) {
  std::vector<const void*> pointers;
  for (const std::vector<float>& source : sources) pointers.push_back(source.data());
  SumGradients(pointers, GradientType::kFP32, static_cast<int64_t>(accumulator.size()), overwrite, accumulator.data());
  return accumulator;
}

TEST(SumGradientsTest, SourcesAreAddedInRankOrder) {
  // 1 is lost beside 1e8, unless the large ones cancel first.
  EXPECT_EQ(Sum({{1e8f}, {1.0f}, {-1e8f}}, true, {7.0f}).front(), 0.0f);
  EXPECT_EQ(Sum({{1e8f}, {-1e8f}, {1.0f}}, true, {7.0f}).front(), 1.0f);
}

TEST(SumGradientsTest, AccumulatorIsAddedLast) {
  // Were the accumulator added first, the ones would be lost one by one.
  EXPECT_EQ(Sum({{4.0f}, {4.0f}, {4.0f}}, false, {1e8f}).front(), 1e8f + 12.0f);
  EXPECT_EQ(Sum({{-1e8f}, {1.0f}}, false, {1e8f}).front(), 0.0f);
}

TEST(SumGradientsTest, OverwriteReadsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Sum({{2.0f}, {3.0f}}, true, {nan}).front(), 5.0f);
}

TEST(SumGradientsTest, SingleSourceKeepsItsSignedZero) {
  EXPECT_TRUE(std::signbit(Sum({{-0.0f}}, true, {1.0f}).front()));
}

TEST(SumGradientsTest, NanIsStoredAsOneNan) {
  const float nan = std::bit_cast<float>(0xffc12345u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Sum({{nan}}, true, {0.0f}).front()), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Sum({{1.0f}, {nan}}, false, {0.0f}).front()), 0x7fc00000u);
}

std::vector<float> SlowSum(const std::vector<std::vector<float>>& sources, bool overwrite,
                           std::vector<float> accumulator) {
  for (size_t i = 0; i < accumulator.size(); ++i) {
    float sum = sources[0][i];
    for (size_t s = 1; s < sources.size(); ++s) sum += sources[s][i];
    accumulator[i] = overwrite ? sum : accumulator[i] + sum;
  }
  return accumulator;
}

TEST(SumGradientsTest, AnyCountIsTheSlowSum) {
  RandomFloats random(21);
  for (int64_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    for (int source_count = 1; source_count <= 5; ++source_count) {
      std::vector<std::vector<float>> sources;
      for (int s = 0; s < source_count; ++s) sources.push_back(random.Normal(count, 1.0f));
      const std::vector<float> accumulator = random.Normal(count, 1.0f);
      for (bool overwrite : {true, false}) {
        EXPECT_EQ(Sum(sources, overwrite, accumulator), SlowSum(sources, overwrite, accumulator)) << count;
      }
    }
  }
}

TEST(SumGradientsTest, BFloat16IsWidenedBeforeAdding) {
  RandomFloats random(22);
  constexpr int64_t kCount = 3001;
  std::vector<std::vector<uint16_t>> stored(3, std::vector<uint16_t>(kCount));
  std::vector<std::vector<float>> widened(3, std::vector<float>(kCount));
  std::vector<const void*> pointers;
  for (int s = 0; s < 3; ++s) {
    const std::vector<float> values = random.Normal(kCount, 1.0f);
    for (int64_t i = 0; i < kCount; ++i) {
      stored[s][i] = EncodeBFloat16(values[i]);
      widened[s][i] = DecodeBFloat16(stored[s][i]);
    }
    pointers.push_back(stored[s].data());
  }
  std::vector<float> accumulator(kCount, 0.25f);
  const std::vector<float> expected = SlowSum(widened, false, accumulator);
  SumGradients(pointers, GradientType::kBF16, kCount, false, accumulator.data());
  EXPECT_EQ(accumulator, expected);
}

TEST(SumGradientsAndSquaresTest, BothAreWhatTwoPassesGive) {
  RandomFloats random(23);
  for (int64_t count : {0, 1, 4095, 4096, 4097, 8192, 100000}) {
    for (bool overwrite : {true, false}) {
      const std::vector<float> first = random.Normal(count, 1.0f);
      const std::vector<float> second = random.Normal(count, 1.0f);
      std::vector<float> once = random.Normal(count, 1.0f);
      std::vector<float> twice = once;
      const void* const sources[] = {first.data(), second.data()};
      const SquareSum sum = SumGradientsAndSquares(sources, GradientType::kFP32, count, overwrite, once.data());
      SumGradients(sources, GradientType::kFP32, count, overwrite, twice.data());
      EXPECT_EQ(once, twice) << count;
      EXPECT_EQ(sum.sum, SumOfSquares(twice.data(), count).sum) << count;
      EXPECT_EQ(sum.non_finite, 0);
    }
  }
}

// A BF16 accumulator beside one of float32 with the same sources.
class BFloat16AccumulatorTest : public testing::Test {
 protected:
  void Sum(const std::vector<std::vector<float>>& sources, bool overwrite, const std::vector<uint16_t>& before) {
    std::vector<const void*> pointers;
    for (const std::vector<float>& source : sources) pointers.push_back(source.data());
    const auto count = static_cast<int64_t>(before.size());
    rounded_ = before;
    wide_.clear();
    for (uint16_t code : before) wide_.push_back(DecodeBFloat16(code));
    const MutableGradient accumulator = {rounded_.data(), GradientType::kBF16};
    squares_ = SumGradientsAndSquares(pointers, GradientType::kFP32, count, overwrite, accumulator);
    SumGradients(pointers, GradientType::kFP32, count, overwrite, wide_.data());
  }

  std::vector<uint16_t> rounded_;
  std::vector<float> wide_;
  SquareSum squares_;
};

TEST_F(BFloat16AccumulatorTest, SumIsRoundedOnce) {
  // 1 + 2^-9 is a tie that goes down; both halves together are not. Each by itself would vanish.
  Sum({{1.0f, 1.0f}, {0x1p-9f, 0x1p-9f}, {0.0f, 0x1p-9f}}, true, {0, 0});
  EXPECT_EQ(rounded_, (std::vector<uint16_t>{0x3f80, 0x3f80}));
  Sum({{1.0f}, {0x1.8p-9f}, {0x1p-9f}}, true, {0});
  EXPECT_EQ(rounded_, std::vector<uint16_t>{0x3f81});
}

TEST_F(BFloat16AccumulatorTest, AnySumIsTheRoundedSumOfFloats) {
  RandomFloats random(23);
  for (int64_t count : {0, 1, 1025, 4096, 9001}) {
    for (bool overwrite : {true, false}) {
      const std::vector<std::vector<float>> sources = {random.Mixed(count), random.Mixed(count), random.Mixed(count)};
      std::vector<uint16_t> before;
      for (float value : random.Normal(count, 1.0f)) before.push_back(EncodeBFloat16(value));
      Sum(sources, overwrite, before);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(rounded_[i], EncodeBFloat16(wide_[i])) << i << " of " << count;
    }
  }
}

TEST_F(BFloat16AccumulatorTest, SquaresAreOfWhatIsStored) {
  RandomFloats random(24);
  constexpr int64_t kCount = 10000;
  Sum({random.Normal(kCount, 1.0f), random.Normal(kCount, 1.0f)}, true, std::vector<uint16_t>(kCount));
  std::vector<float> stored;
  for (uint16_t code : rounded_) stored.push_back(DecodeBFloat16(code));
  EXPECT_EQ(squares_.sum, SumOfSquares(stored.data(), kCount).sum);
  EXPECT_NE(squares_.sum, SumOfSquares(wide_.data(), kCount).sum);
  EXPECT_EQ(SumOfSquares(ConstGradient(rounded_.data(), GradientType::kBF16), kCount).sum, squares_.sum);
}

}  // namespace
}  // namespace paramshard
