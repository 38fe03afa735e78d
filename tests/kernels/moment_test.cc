#include "kernels/optim/moment.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/random_floats.h"

namespace paramshard {
namespace {

// A moment whose stored bytes are 0xcd until they are written.
struct StoredMoment {
  StoredMoment(MomentType type, int64_t rows, int64_t cols)
      : type(type), data(rows * cols * MomentBytes(type), 0xcd), scales(MomentScaleCount(type, rows, cols), -1.0f) {}

  MutableMoment View() { return {data.data(), scales.data(), type}; }
  ConstMoment ConstView() const { return {data.data(), scales.data(), type}; }

  MomentType type;
  std::vector<uint8_t> data;
  std::vector<float> scales;
};

TEST(MomentTest, AnyShapeIsStoredByTheDefinition) {
  constexpr uint64_t kSeed = 21;
  RandomFloats random(kSeed);
  for (const MomentTraits& moment : kMomentKinds) {
    for (MomentType type : kMomentTypes) {
      for (int round = 0; round < 20; ++round) {
        const int64_t rows = random.Integer(0, 9);
        const int64_t cols = random.Integer(1, 400);
        SCOPED_TRACE(absl::StrCat("seed ", kSeed, " type ", static_cast<int>(type), " ", rows, " x ", cols));
        const std::vector<float> values = round % 2 == 0 ? random.Mixed(rows * cols) : random.AnyBits(rows * cols);
        const Moments expected(moment.kind, type, rows, cols, values);
        StoredMoment stored(type, rows, cols);
        EncodeMoment(moment.kind, values.data(), rows, cols, stored.View());
        EXPECT_TRUE(SameBytes(expected.bytes(), stored.data));
        EXPECT_TRUE(SameBytes(AsBytes(expected.scales()), AsBytes(stored.scales)));
        std::vector<float> decoded(rows * cols);
        DecodeMoment(moment.kind, stored.ConstView(), rows, cols, decoded.data());
        EXPECT_TRUE(SameBytes(AsBytes(expected.Get()), AsBytes(decoded)));
      }
    }
  }
}

TEST(MomentTest, DecodedValuesAreNearTheOriginals) {
  RandomFloats random(22);
  std::vector<float> values = random.Normal(1000, 1e-6f);
  for (float& value : values) value = std::fabs(value);
  for (const MomentTraits& moment : kMomentKinds) {
    for (MomentType type : {MomentType::kFP16, MomentType::kFP8}) {
      StoredMoment stored(type, 1, 1000);
      EncodeMoment(moment.kind, values.data(), 1, 1000, stored.View());
      std::vector<float> decoded(1000);
      DecodeMoment(moment.kind, stored.ConstView(), 1, 1000, decoded.data());
      const float tolerance = type == MomentType::kFP16 ? 1e-8f : 4e-7f;
      for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(decoded[i], values[i], tolerance);
    }
  }
}

TEST(MomentTest, BlockOfZerosHasScaleOne) {
  const std::vector<float> zeros(128, 0.0f);
  for (MomentType type : {MomentType::kFP16, MomentType::kFP8}) {
    StoredMoment stored(type, 1, 128);
    EncodeMoment(MomentKind::kSecond, zeros.data(), 1, 128, stored.View());
    EXPECT_EQ(stored.scales[0], 1.0f);
    EXPECT_EQ(stored.data, std::vector<uint8_t>(stored.data.size(), 0));
  }
}

TEST(MomentTest, InfinityIsStoredAsTheLargestAndNanAsNan) {
  const float values[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 2.0f};
  StoredMoment half(MomentType::kFP16, 1, 3);
  EncodeMoment(MomentKind::kFirst, values, 1, 3, half.View());
  EXPECT_EQ(half.scales[0], 1.0f);
  EXPECT_EQ(half.data, (std::vector<uint8_t>{0xff, 0x7b, 0xff, 0x7f, 0x00, 0x40}));
  StoredMoment byte(MomentType::kFP8, 1, 3);
  EncodeMoment(MomentKind::kFirst, values, 1, 3, byte.View());
  EXPECT_EQ(byte.data, (std::vector<uint8_t>{0x7e, 0x7f, 0x40}));
}

TEST(MomentTest, PartsBeginWithTheirBlock) {
  StoredMoment stored(MomentType::kFP8, 3, 300);
  const MutableMoment part = MomentAt(stored.View(), 300, 2, 256);
  EXPECT_EQ(part.data, stored.data.data() + 2 * 300 + 256);
  EXPECT_EQ(part.scales, stored.scales.data() + 2 * 3 + 2);
  StoredMoment floats(MomentType::kFP32, 3, 300);
  EXPECT_EQ(MomentAt(floats.View(), 300, 1, 1).data, floats.data.data() + 4 * 301);
}

TEST(MomentTest, SizesCountTheLastShorterBlock) {
  EXPECT_EQ(MomentScaleCount(MomentType::kFP8, 3, 129), 6);
  EXPECT_EQ(MomentScaleCount(MomentType::kFP16, 0, 129), 0);
  EXPECT_EQ(MomentScaleCount(MomentType::kBF16, 3, 129), 0);
  EXPECT_EQ(MomentBytes(MomentType::kFP16), 2);
  EXPECT_EQ(MomentBytes(MomentType::kFP8), 1);
}

}  // namespace
}  // namespace paramshard
