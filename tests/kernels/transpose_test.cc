#include "kernels/formats/transpose.h"
#include "kernels/formats/format.h"

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 5}, {1, 1},   {1, 2},    {2, 1},
                                                   {3, 5}, {64, 64}, {65, 130}, {200, 63}};

Bytes Random(int64_t size) {
  std::mt19937_64 random(7);
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

int NibbleAt(const Bytes& bytes, int64_t cols, int64_t row, int64_t col) {
  const uint8_t byte = bytes[row * ((cols + 1) / 2) + col / 2];
  return col % 2 == 0 ? byte & 0xf : byte >> 4;
}

TEST(TransposeBytesTest, ElementsChangeRowAndColumn) {
  for (const auto& [rows, cols] : kShapes) {
    const Bytes data = Random(rows * cols);
    Bytes out(rows * cols);
    TransposeBytes(data.data(), rows, cols, out.data());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) ASSERT_EQ(out[col * rows + row], data[row * cols + col]);
    }
  }
}

TEST(TransposeNibblesTest, ElementsChangeRowAndColumn) {
  for (const auto& [rows, cols] : kShapes) {
    SCOPED_TRACE(absl::StrCat(rows, " x ", cols));
    const Bytes data = Random(rows * ((cols + 1) / 2));
    Bytes out(cols * ((rows + 1) / 2), 0xff);
    TransposeNibbles(data.data(), rows, cols, out.data());
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; ++row) {
        ASSERT_EQ(NibbleAt(out, rows, col, row), NibbleAt(data, cols, row, col)) << row << " " << col;
      }
      if (rows % 2 == 1) {
        ASSERT_EQ(NibbleAt(out, rows, col, rows), 0);
      }
    }
  }
}

TEST(TransposableWidthTest, FormatsOf8And4BitsAreTransposed) {
  for (const FormatTraits& traits : kFormats) {
    SCOPED_TRACE(traits.name);
    if (traits.element_bits == 8 || traits.element_bits == 4) {
      EXPECT_THAT(TransposableWidth(traits.format), IsOkAndHolds(traits.element_bits));
    } else {
      EXPECT_THAT(TransposableWidth(traits.format),
                  StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("8 or 4 bits")));
    }
  }
}

}  // namespace
}  // namespace paramshard
