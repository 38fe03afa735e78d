#include "kernels/reduce/sum_of_squares.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reduce/gradient_sum.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

// The header's rules 2 and 3, literally.
double SlowChunk(const std::vector<double>& terms) {
  std::vector<double> lane(256, 0.0);
  for (size_t j = 0; j < 256; ++j) {
    for (size_t i = j; i < terms.size(); i += 256) lane[j] += terms[i];
  }
  for (size_t w = 128; w >= 1; w /= 2) {
    for (size_t j = 0; j < w; ++j) lane[j] += lane[j + w];
  }
  return lane[0];
}

// Rules 1 and 4.
double SlowSum(std::vector<double> terms) {
  if (terms.empty()) return 0.0;
  do {
    std::vector<double> sums;
    for (size_t first = 0; first < terms.size(); first += 4096) {
      const size_t last = std::min(terms.size(), first + 4096);
      sums.push_back(SlowChunk({terms.begin() + first, terms.begin() + last}));
    }
    terms = sums;
  } while (terms.size() > 1);
  return terms[0];
}

std::vector<double> Squares(const std::vector<float>& values) {
  std::vector<double> squares;
  for (float value : values) squares.push_back(double{value} * double{value});
  return squares;
}

SquareSum Sum(const std::vector<float>& values) {
  return SumOfSquares(values.data(), static_cast<int64_t>(values.size()));
}

TEST(SumOfSquaresTest, OrderIsTheDocumentedOne) {
  RandomFloats random(31);
  for (int64_t count : {1, 2, 255, 256, 257, 4095, 4096, 4097, 8192, 100000, 1000003}) {
    const std::vector<float> values = random.Normal(count, 3.0f);
    EXPECT_EQ(Sum(values).sum, SlowSum(Squares(values))) << count;
    EXPECT_EQ(Sum(values).non_finite, 0) << count;
  }
}

TEST(SumOfSquaresTest, ManyChunksAreSummedInThreeLevels) {
  // More than 4096 chunks of 4096.
  std::vector<float> values(4096 * 4096 + 5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i % 977);
  EXPECT_EQ(Sum(values).sum, SlowSum(Squares(values)));
}

TEST(SumOfSquaresTest, EmptyArrayIsZero) {
  EXPECT_EQ(SumOfSquares(nullptr, 0).sum, 0.0);
  EXPECT_EQ(SumOfSquares(nullptr, 0).non_finite, 0);
}

TEST(SumOfSquaresTest, LargestAndSmallestFloatsAreExact) {
  EXPECT_EQ(Sum({std::numeric_limits<float>::max()}).sum, 0x1.fffffep127 * 0x1.fffffep127);
  EXPECT_EQ(Sum({0x1p-149f}).sum, 0x1p-298);
}

TEST(SumOfSquaresTest, NonFiniteElementsAreCounted) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(10000, 1.0f);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[4096] = infinity;
  values[9999] = -infinity;
  EXPECT_EQ(Sum(values).non_finite, 3);
}

}  // namespace
}  // namespace paramshard
