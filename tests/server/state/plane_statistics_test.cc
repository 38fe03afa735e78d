#include "server/state/plane_statistics.h"
#include "kernels/formats/format.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Encoding kFP32{Format::kFP32};
constexpr Encoding kBF16{Format::kBF16};
constexpr Encoding kFP16{Format::kFP16};
constexpr Encoding kCurrent{Format::kFP8TensorCurrent, ElementType::kE4M3, false};
constexpr Encoding kDelayed{Format::kFP8TensorDelayed, ElementType::kE4M3, false};
constexpr Encoding kDelayedE5M2{Format::kFP8TensorDelayed, ElementType::kE5M2, false};
constexpr Encoding kBlock{Format::kFP8Block128x128, ElementType::kE4M3, true};
constexpr Encoding kMXFP8{Format::kMXFP8, ElementType::kE4M3, false};
constexpr Encoding kMXFP8_2D{Format::kMXFP8_2D, ElementType::kE5M2, false};
constexpr Encoding kNVFP4{Format::kNVFP4_2D, ElementType::kE2M1, false};

// Measures a matrix of `columns`, encoded with the amax that it has, or `scale`.
PlaneStatistics Measure(const Encoding& encoding, const std::vector<float>& master, int64_t columns, float scale = 1) {
  const int64_t rows = static_cast<int64_t>(master.size()) / columns;
  std::vector<uint8_t> data(DataBytes(encoding, rows, columns));
  std::vector<uint8_t> scales(ScaleBytes(encoding, Plane::kRowWise, rows, columns));
  std::vector<uint8_t> amax(AmaxBytes(encoding.format));
  const TensorScaling scaling{.amax = Amax(master.data(), static_cast<int64_t>(master.size())), .scale = scale};
  EncodePlanes(encoding, master.data(), rows, columns, {data.data(), scales.data(), amax.data()}, {}, scaling);
  return MeasurePlane(encoding, {data.data(), scales.data(), amax.data()}, static_cast<int64_t>(scales.size()), master,
                      columns);
}

// Rows of odd length: rows of NVFP4 end in half a byte.
std::vector<float> Powers(int64_t rows, int64_t columns) {
  std::vector<float> values(rows * columns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = (i % 2 == 0 ? 1.0f : -0.5f);
  return values;
}

TEST(PlaneStatisticsTest, ValuesOfEveryFormatHaveNoError) {
  for (const Encoding& encoding : {kFP32, kBF16, kFP16, kDelayed, kDelayedE5M2, kBlock, kMXFP8, kMXFP8_2D, kNVFP4}) {
    SCOPED_TRACE(FormatName(encoding.format));
    const PlaneStatistics statistics = Measure(encoding, Powers(37, 19), 19);
    EXPECT_EQ(statistics.elements, 37 * 19);
    EXPECT_EQ(statistics.amax, 1);
    EXPECT_EQ(statistics.zeros, 0);
    EXPECT_EQ(statistics.saturated, 0);
    EXPECT_EQ(statistics.non_finite, 0);
    EXPECT_LT(statistics.RelativeError(), 1e-6);
    EXPECT_LT(statistics.max_relative_error, 1e-6);
    EXPECT_NEAR(statistics.Norm(), std::sqrt(352 + 351 * 0.25), 1e-9);
  }
}

TEST(PlaneStatisticsTest, ScalesAreCountedByPowersOfTwo) {
  EXPECT_THAT(Measure(kFP32, Powers(2, 2), 2).scale_counts, IsEmpty());
  EXPECT_FALSE(Measure(kBF16, Powers(2, 2), 2).scale_min.has_value());
  // amax / 448 is in [2^-9, 2^-8).
  EXPECT_THAT(Measure(kCurrent, Powers(3, 5), 5).scale_counts, ElementsAre(Pair(-9, 1)));
  EXPECT_THAT(Measure(kDelayed, Powers(3, 5), 5, 4).scale_counts, ElementsAre(Pair(-2, 1)));
  EXPECT_EQ(Measure(kDelayed, Powers(3, 5), 5, 4).scale_max, 0.25);
  EXPECT_THAT(Measure(kBlock, Powers(130, 3), 3).scale_counts, ElementsAre(Pair(-8, 2)));
  // The second of two blocks in each row is four times smaller.
  std::vector<float> values(2 * 64, 1.0f);
  for (int row : {0, 1}) std::fill_n(values.begin() + row * 64 + 32, 32, 0.25f);
  EXPECT_THAT(Measure(kMXFP8, values, 64).scale_counts, ElementsAre(Pair(-10, 2), Pair(-8, 2)));
  EXPECT_THAT(Measure(kMXFP8_2D, values, 64).scale_counts, ElementsAre(Pair(-17, 1), Pair(-15, 1)));
  // E4M3: 448 where the block has the tensor's amax.
  EXPECT_THAT(Measure(kNVFP4, values, 64).scale_counts, ElementsAre(Pair(6, 2), Pair(8, 2)));
}

TEST(PlaneStatisticsTest, AScaleOfZeroHasNoExponent) {
  std::vector<float> values(2 * 16, 1.0f);
  std::fill_n(values.begin(), 16, 1e-9f);
  // 16 columns, two rows: one block. Two blocks of 16 columns:
  std::vector<float> wide(32, 1.0f);
  std::fill_n(wide.begin(), 16, 1e-9f);
  const PlaneStatistics statistics = Measure(kNVFP4, wide, 32);
  EXPECT_THAT(statistics.scale_counts, ElementsAre(Pair(std::nullopt, 1), Pair(8, 1)));
  EXPECT_EQ(statistics.zeros, 16);
  EXPECT_EQ(statistics.saturated, 0) << "they are lost, not cut off";
  EXPECT_EQ(statistics.max_relative_error, 1);
}

TEST(PlaneStatisticsTest, WhatIsCutOffIsSaturated) {
  // The largest E4M3 is 448; up to 464 rounding goes there.
  EXPECT_EQ(Measure(kDelayed, {1, 448, 460, 465, -1000, 3}, 3).saturated, 2);
  EXPECT_EQ(Measure(kDelayed, {1, 448, 460, 465, -1000, 3}, 3, 0.25f).saturated, 0);
  EXPECT_EQ(Measure(kDelayedE5M2, {1, 57344, 61000, 62000, -1e9f, 3}, 3).saturated, 2);
  EXPECT_EQ(Measure(kFP16, {65504, 65519, 65521, -1e9f}, 4).saturated, 2);
  EXPECT_EQ(Measure(kBF16, {1, std::numeric_limits<float>::max()}, 2).saturated, 1) << "infinite";
  EXPECT_EQ(Measure(kFP32, {1, std::numeric_limits<float>::max()}, 2).saturated, 0);
}

TEST(PlaneStatisticsTest, SmallElementsAreLostToZero) {
  const PlaneStatistics statistics = Measure(kDelayed, {0, 1e-9f, 1, -1e-9f}, 2);
  EXPECT_EQ(statistics.zeros, 3);
  EXPECT_EQ(statistics.max_relative_error, 1);
}

TEST(PlaneStatisticsTest, NonFiniteMastersAreLeftOut) {
  const PlaneStatistics statistics = Measure(kDelayed, {NAN, kInfinity, -kInfinity, 2}, 2);
  EXPECT_EQ(statistics.non_finite, 3);
  EXPECT_EQ(statistics.amax, 2);
  EXPECT_EQ(statistics.RelativeError(), 0);
  EXPECT_EQ(statistics.saturated, 0);
}

TEST(PlaneStatisticsTest, ExtentsAddUp) {
  PlaneStatistics sum = Measure(kMXFP8, {1, 1.05f, 3, 4}, 2);
  sum += Measure(kMXFP8, {100, 0, NAN, 7}, 2);
  EXPECT_EQ(sum.elements, 8);
  EXPECT_EQ(sum.amax, 100);
  EXPECT_EQ(sum.zeros, 1);
  EXPECT_EQ(sum.non_finite, 1);
  EXPECT_GT(sum.max_error, 0);
  EXPECT_GT(sum.scale_max, sum.scale_min);
  EXPECT_EQ(sum.RelativeError(), std::sqrt(sum.error_square_sum / sum.master_square_sum));
}

}  // namespace
}  // namespace paramshard::server
