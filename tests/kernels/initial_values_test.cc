#include "kernels/random/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/random/initial_values_math.h"
#include "kernels/random/philox.h"

namespace paramshard {
namespace {

std::vector<uint32_t> Words(PhiloxCounter counter, PhiloxKey key) {
  const PhiloxBlock block = Philox4x32(counter, key);
  return {block.word, block.word + 4};
}

// The known answers that Random123, the authors' implementation, is tested with.
TEST(PhiloxTest, KnownAnswersAreMet) {
  EXPECT_EQ(Words({{0, 0, 0, 0}}, {{0, 0}}), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Words({{~0u, ~0u, ~0u, ~0u}}, {{~0u, ~0u}}),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UnitDoubleStaysBelowOne) {
  EXPECT_EQ(UnitDouble(0, 0), 0.0);
  EXPECT_EQ(UnitDouble(~0u, ~0u), 1.0 - 0x1p-53);
  EXPECT_EQ(UnitDouble(0x80000000u, 0), 0.5);
  EXPECT_EQ(UnitDouble(0, 1u << 6), 0x1p-53);
}

TEST(InitialValuesMathTest, LogarithmIsAccurate) {
  for (int i = 1; i < 100000; ++i) {
    for (double x : {i / 100000.0, std::ldexp(i, -53), 1.0 - std::ldexp(i, -53)}) {
      ASSERT_NEAR(NaturalLog(x), std::log(x), 1e-15 * std::max(std::fabs(std::log(x)), 0x1p-60)) << x;
    }
  }
  EXPECT_EQ(NaturalLog(1.0), 0.0);
}

TEST(InitialValuesMathTest, CosineIsAccurate) {
  for (int i = 0; i <= 100000; ++i) {
    const double turns = i / 100000.0;
    ASSERT_NEAR(CosineOfTurns(turns), std::cos(2 * M_PI * turns), 1e-15) << turns;
  }
  EXPECT_EQ(CosineOfTurns(0.0), 1.0);
  EXPECT_EQ(CosineOfTurns(0.5), -1.0);
}

double NormalDistribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

TEST(InitialValuesMathTest, InverseOfTheNormalDistributionIsAccurate) {
  for (double x = -37.0; x <= 0.0; x += 0.001) {
    const double tail = NormalDistribution(x);
    ASSERT_NEAR(InverseNormal(tail - 0.5, tail), x, 1e-13 * std::max(1.0, -x)) << x;
    ASSERT_NEAR(InverseNormal(0.5 - tail, tail), -x, 1e-13 * std::max(1.0, -x)) << x;
  }
  EXPECT_EQ(InverseNormal(0.0, 0.5), 0.0);
}

TEST(InitialValuesMathTest, NextBelowIsTheNeighbour) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float x : {1.0f, -1.0f, 0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-126f}) {
    EXPECT_EQ(NextBelow(x), std::nextafter(x, -infinity)) << x;
  }
}

std::vector<float> Fill(const InitialValue& value, uint64_t seed, int64_t parameter, int64_t first, int64_t count) {
  std::vector<float> out(count);
  FillInitialValues(value, seed, parameter, first, count, out.data());
  return out;
}

constexpr InitialValue kStandardNormal = {Initializer::kNormal, 0.0f, 1.0f};
constexpr InitialValue kTruncated = {Initializer::kTruncatedNormal, 0.0f, 1.0f, -2.0f, 2.0f};
constexpr InitialValue kUnit = {Initializer::kUniform, 0.0f, 1.0f};

TEST(InitialValuesTest, SliceEqualsTheWhole) {
  for (const InitialValue& value : {kStandardNormal, kUnit, kTruncated}) {
    const std::vector<float> whole = Fill(value, 5, 3, 0, 1000);
    for (int64_t first : {0, 1, 17, 999}) {
      const std::vector<float> slice = Fill(value, 5, 3, first, 1000 - first);
      EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + first)) << first;
    }
  }
}

TEST(InitialValuesTest, VectorLoopEqualsTheFormula) {
  const std::vector<float> normal = Fill({Initializer::kNormal, 0.5f, 0.02f}, 77, 12, 0, 20001);
  const std::vector<float> uniform = Fill({Initializer::kUniform, -0.3f, 0.1f}, 77, 12, 0, 20001);
  for (size_t i = 0; i < normal.size(); ++i) {
    ASSERT_EQ(normal[i], NormalValue(ElementWords(77, 12, i), 0.5f, 0.02f)) << i;
    ASSERT_EQ(uniform[i], UniformValue(ElementWords(77, 12, i), -0.3f, 0.1f)) << i;
  }
}

// Changes of the generator, the mapping or the formulas would change the initial weights of every model.
TEST(InitialValuesTest, FirstValuesArePinned) {
  EXPECT_EQ(Fill(kUnit, 0, 0, 0, 1).front(), 0x1.989fa4p-2f);
  EXPECT_EQ(Fill(kStandardNormal, 0, 0, 0, 1).front(), -0x1.7293dep-4f);
  EXPECT_EQ(Fill(kTruncated, 0, 0, 0, 1).front(), -0x1.f39522p-3f);
}

TEST(InitialValuesTest, HighHalvesGoIntoTheCounter) {
  const uint64_t seed = 0x0123456789abcdefu;
  const int64_t parameter = (int64_t{3} << 32) + 7;
  const PhiloxBlock words = ElementWords(seed, parameter, (uint64_t{5} << 32) + 9);
  const PhiloxBlock expected = Philox4x32({{9, 5, 0x01234567, 3}}, {{0x89abcdef, 7}});
  EXPECT_TRUE(std::equal(words.word, words.word + 4, expected.word));
}

TEST(InitialValuesTest, SeedParameterAndHighHalvesAllMatter) {
  const int64_t high = int64_t{1} << 32;
  std::set<std::vector<float>> streams;
  for (uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} + high}) {
    for (int64_t parameter : {int64_t{0}, int64_t{1}, high}) {
      for (int64_t first : {int64_t{0}, int64_t{100}, high}) streams.insert(Fill(kUnit, seed, parameter, first, 8));
    }
  }
  EXPECT_EQ(streams.size(), 27u);
}

struct Moments {
  double mean;
  double variance;
};

Moments MomentsOf(const std::vector<float>& values) {
  double sum = 0;
  double squares = 0;
  for (float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double mean = sum / static_cast<double>(values.size());
  return {mean, squares / static_cast<double>(values.size()) - mean * mean};
}

// The largest distance between the empirical and the expected distribution function (Kolmogorov and Smirnov).
template <typename Distribution>
double KolmogorovDistance(std::vector<float> values, Distribution distribution) {
  std::sort(values.begin(), values.end());
  double distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double empirical = static_cast<double>(i) / static_cast<double>(values.size());
    distance = std::max(distance, std::fabs(empirical - distribution(values[i])));
  }
  return distance;
}

constexpr int64_t kSamples = 1000000;
// P(distance > 1.95 / sqrt(n)) is 0.001.
const double kLargestDistance = 1.95 / std::sqrt(static_cast<double>(kSamples));

TEST(InitialValuesTest, NormalIsNormal) {
  const std::vector<float> values = Fill(kStandardNormal, 1, 0, 0, kSamples);
  EXPECT_NEAR(MomentsOf(values).mean, 0.0, 0.004);
  EXPECT_NEAR(MomentsOf(values).variance, 1.0, 0.006);
  EXPECT_LT(KolmogorovDistance(values, [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }),
            kLargestDistance);
}

struct Truncation {
  float mean;
  float standard_deviation;
  float low;
  float high;
};

// Around the mean, beside it, far out on both sides, hardly truncated, and all but one value.
constexpr Truncation kTruncations[] = {
    {0, 1, -2, 2},  {0, 0.02f, -0.04f, 0.04f}, {1, 2, 1, 1.5f},     {0, 1, 3, 100},
    {0, 1, -9, -8}, {5, 1, -100, 100},         {-1, 0.5f, -10, -1}, {0, 1, 1, 1.0000001f}};

constexpr int64_t kFewSamples = 100000;

TEST(InitialValuesTest, TruncatedNormalsAreNormalBetweenTheirEnds) {
  for (const Truncation& t : kTruncations) {
    SCOPED_TRACE(absl::StrCat(t.mean, " ", t.standard_deviation, " in ", t.low, ", ", t.high));
    const std::vector<float> values =
        Fill({Initializer::kTruncatedNormal, t.mean, t.standard_deviation, t.low, t.high}, 1, 0, 0, kFewSamples);
    EXPECT_GE(*std::min_element(values.begin(), values.end()), t.low);
    EXPECT_LE(*std::max_element(values.begin(), values.end()), t.high);
    if (t.high - t.low < 1e-6) continue;  // floats are too far apart for a distribution
    // The tail that is the smaller one: its differences are exact.
    const double sign = t.low + t.high > 2 * t.mean ? -1 : 1;
    const auto below = [&](double x) { return NormalDistribution(sign * (x - t.mean) / t.standard_deviation); };
    EXPECT_LT(KolmogorovDistance(values,
                                 [&](double x) { return (below(x) - below(t.low)) / (below(t.high) - below(t.low)); }),
              kLargestDistance * std::sqrt(static_cast<double>(kSamples) / kFewSamples));
  }
}

// Where doubles hold nothing of the distribution, the end that is nearer to the mean is left.
TEST(InitialValuesTest, IntervalsBeyondTheDistributionGiveTheirNearerEnd) {
  for (float value : Fill({Initializer::kTruncatedNormal, 0.0f, 1.0f, 50.0f, 60.0f}, 1, 0, 0, 100))
    EXPECT_EQ(value, 50);
  for (float value : Fill({Initializer::kTruncatedNormal, 0.0f, 1.0f, -60.0f, -50.0f}, 1, 0, 0, 100)) {
    EXPECT_EQ(value, -50);
  }
}

TEST(InitialValuesTest, UniformIsUniform) {
  const std::vector<float> values = Fill({Initializer::kUniform, -2.0f, 6.0f}, 1, 0, 0, kSamples);
  EXPECT_NEAR(MomentsOf(values).mean, 2.0, 0.01);
  EXPECT_NEAR(MomentsOf(values).variance, 64.0 / 12.0, 0.02);
  EXPECT_LT(KolmogorovDistance(values, [](double x) { return (x + 2.0) / 8.0; }), kLargestDistance);
}

TEST(InitialValuesTest, UpperEndIsExcluded) {
  const float below = std::nextafter(1.0f, 0.0f);
  for (float value : Fill({Initializer::kUniform, below, 1.0f}, 1, 0, 0, 1000)) EXPECT_EQ(value, below);
}

TEST(InitialValuesTest, ConstantsAreConstant) {
  EXPECT_EQ(Fill({Initializer::kZeros}, 1, 0, 0, 3), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(Fill({Initializer::kOnes}, 1, 0, 0, 3), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(Fill({Initializer::kConstant, 2.5f}, 1, 0, 0, 3), (std::vector<float>{2.5, 2.5, 2.5}));
}

TEST(InitialValuesTest, ARangeOfElementsMayBeZero) {
  const InitialValue plain = {Initializer::kNormal, 1.0f, 0.5f};
  InitialValue zeroed = plain;
  zeroed.zero_begin = 40;
  zeroed.zero_end = 56;
  std::vector<float> expected = Fill(plain, 5, 1, 0, 100);
  std::fill(expected.begin() + 40, expected.begin() + 56, 0.0f);
  for (const int64_t first : {0, 30, 45, 50, 60}) {
    for (const int64_t count : {0, 5, 10, 40}) {
      EXPECT_EQ(Fill(zeroed, 5, 1, first, count),
                std::vector<float>(expected.begin() + first, expected.begin() + first + count))
          << first << " " << count;
    }
  }
}

TEST(InitialValuesTest, ARangeThatEndsBeforeItBeginsIsRefused) {
  InitialValue value;
  value.zero_begin = 2;
  value.zero_end = 1;
  EXPECT_FALSE(CheckInitialValue(value).ok());
  value.zero_begin = -1;
  EXPECT_FALSE(CheckInitialValue(value).ok());
  value.zero_begin = value.zero_end = 1;
  EXPECT_TRUE(CheckInitialValue(value).ok());
}

TEST(InitialValuesTest, SenselessDistributionsAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const InitialValue& value :
       {InitialValue{Initializer::kNormal, 0.0f, -1.0f}, InitialValue{Initializer::kUniform, 1.0f, 1.0f},
        InitialValue{Initializer::kConstant, nan}, InitialValue{Initializer::kNormal, nan, 1.0f},
        InitialValue{Initializer::kTruncatedNormal, 0.0f, 0.0f}, InitialValue{Initializer::kTruncatedNormal, nan, 1.0f},
        InitialValue{Initializer::kTruncatedNormal, 0.0f, 1.0f, 2.0f, 2.0f},
        InitialValue{static_cast<Initializer>(0)}}) {
    EXPECT_EQ(CheckInitialValue(value).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace paramshard
