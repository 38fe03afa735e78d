// Matrix and GradientView in host memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GradientViewTest, ValuesAreRoundedToTheType) {
  const std::vector<float> values = {1.0f, -2.5f, 1.00390625f, 1.01171875f};  // the last two lie half way: to even
  std::vector<uint8_t> memory(16);
  GradientView view{.rows = 2, .columns = 2, .type = GradientType::kFP32, .data = absl::MakeSpan(memory)};
  ASSERT_OK(view.Write(values));
  EXPECT_THAT(view.fp32(), ElementsAre(1.0f, -2.5f, 1.00390625f, 1.01171875f));
  view.type = GradientType::kBF16;
  view.data = absl::MakeSpan(memory).subspan(0, 8);
  ASSERT_OK(view.Write(values));
  EXPECT_THAT(view.bf16(), ElementsAre(0x3f80, 0xc020, 0x3f80, 0x3f82));
}

TEST(GradientViewTest, AnotherNumberOfValuesIsRefused) {
  std::vector<uint8_t> memory(16);
  const GradientView view{.rows = 2, .columns = 2, .data = absl::MakeSpan(memory)};
  EXPECT_THAT(view.Write(std::vector<float>(3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 2 x 2 values, got 3")));
}

TEST(GradientViewTest, NoValuesAreFine) {
  const GradientView view{.rows = 0, .columns = 5};
  EXPECT_OK(view.Write({}));
}

// Larger than what is decoded at a time, in every format and plane: blocks are not cut.
TEST(DecodeTest, BFloat16IsRoundedFloat32) {
  constexpr int64_t kRows = 600, kColumns = 337;
  std::vector<float> master(kRows * kColumns);
  for (size_t i = 0; i < master.size(); ++i) master[i] = std::sin(static_cast<float>(i)) * static_cast<float>(i % 97);
  const TensorScaling scaling{.amax = 96.0f, .scale = 4.0f};
  for (const FormatTraits& traits : kFormats) {
    const Encoding encoding{.format = traits.format, .element = DefaultElement(traits.format)};
    SCOPED_TRACE(traits.name);
    for (const Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (plane == Plane::kColumnWise && !HasColumnPlane(traits.format)) continue;
      std::vector<uint8_t> data(DataBytes(encoding, kRows, kColumns));
      std::vector<uint8_t> scales(ScaleBytes(encoding, plane, kRows, kColumns));
      std::vector<uint8_t> amax(AmaxBytes(traits.format));
      const MutablePlane encoded{.data = data.data(), .scales = scales.data(), .amax = amax.data()};
      const bool is_row_wise = plane == Plane::kRowWise;
      EncodePlanes(encoding, master.data(), kRows, kColumns, is_row_wise ? encoded : MutablePlane(),
                   is_row_wise ? MutablePlane() : encoded, scaling);
      const Matrix matrix{.rows = kRows,
                          .columns = kColumns,
                          .encoding = encoding,
                          .plane = plane,
                          .data = data,
                          .scales = scales,
                          .amax = amax};
      std::vector<float> values(master.size());
      ASSERT_OK(matrix.Decode(values.data()));
      std::vector<uint16_t> expected(master.size()), rounded(master.size());
      std::transform(values.begin(), values.end(), expected.begin(), EncodeBFloat16);
      ASSERT_OK(matrix.DecodeToBFloat16(rounded.data()));
      EXPECT_EQ(rounded, expected);
    }
  }
}

// 40 x 20 elements of MXFP8, each byte its index.
class MatrixTest : public testing::Test {
 protected:
  MatrixTest() {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<uint8_t>(i);
    for (size_t i = 0; i < scales_.size(); ++i) scales_[i] = static_cast<uint8_t>(100 + i);
  }

  std::vector<uint8_t> data_ = std::vector<uint8_t>(40 * 20);
  std::vector<uint8_t> scales_ = std::vector<uint8_t>(40);
  const Matrix matrix_{.rows = 40,
                       .columns = 20,
                       .encoding = {.format = Format::kMXFP8},
                       .data = absl::MakeConstSpan(data_),
                       .scales = absl::MakeConstSpan(scales_)};
};

TEST_F(MatrixTest, TransposeSwapsRowsAndColumns) {
  std::vector<uint8_t> out(20 * 40);
  ASSERT_OK(matrix_.Transpose(absl::MakeSpan(out)));
  for (int row = 0; row < 40; ++row) {
    for (int column = 0; column < 20; ++column) ASSERT_EQ(out[column * 40 + row], data_[row * 20 + column]);
  }
}

TEST_F(MatrixTest, TransposeOfNibblesPadsRows) {
  const std::vector<uint8_t> data = {0x21, 0x43, 0x65};  // 1 2 | 3 4 | 5 6
  const Matrix matrix{.rows = 3,
                      .columns = 2,
                      .encoding = {.format = Format::kNVFP4_2D, .element = ElementType::kE2M1},
                      .data = absl::MakeConstSpan(data)};
  std::vector<uint8_t> out(4);
  ASSERT_OK(matrix.Transpose(absl::MakeSpan(out)));
  EXPECT_THAT(out, ElementsAre(0x31, 0x05, 0x42, 0x06));
}

TEST_F(MatrixTest, TransposeRefusesOtherSizesAndWidths) {
  std::vector<uint8_t> out(20 * 40 - 1);
  EXPECT_THAT(matrix_.Transpose(absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 800 bytes, got 799")));
  Matrix wide = matrix_;
  wide.encoding.format = Format::kBF16;
  EXPECT_THAT(wide.Transpose(absl::MakeSpan(out)), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST_F(MatrixTest, ScalesAreCopiedAsTheProductReadsThem) {
  EXPECT_THAT(matrix_.ScaleLayoutBytes(ScaleLayout::kCompact), IsOkAndHolds(40));
  ASSERT_THAT(matrix_.ScaleLayoutBytes(ScaleLayout::kSwizzled128x4), IsOkAndHolds(512));
  std::vector<uint8_t> out(512, 0xff);
  ASSERT_OK(matrix_.CopyScales(ScaleLayout::kSwizzled128x4, absl::MakeSpan(out)));
  EXPECT_EQ(out[16 * 5], 105);      // row 5
  EXPECT_EQ(out[16 * 5 + 4], 137);  // row 37
  EXPECT_EQ(out[16 * 8 + 4], 0);    // row 40 is padding
}

TEST_F(MatrixTest, OtherLayoutsOperandsAndSizesAreRefused) {
  std::vector<uint8_t> out(511);
  EXPECT_THAT(matrix_.CopyScales(ScaleLayout::kPadded128x4, absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("copy scales: want 512 bytes, got 511")));
  EXPECT_THAT(matrix_.CopyScales(static_cast<ScaleLayout>(7), absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got number 7")));
  EXPECT_THAT(matrix_.CopyScales(ScaleLayout::kPadded128x4, absl::MakeSpan(out), Plane::kColumnWise),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("operand")));
}

}  // namespace
}  // namespace paramshard
