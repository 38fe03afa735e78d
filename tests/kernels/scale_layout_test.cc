#include "kernels/formats/scale_layout.h"
#include "kernels/formats/format.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

// Bytes from 1 on, so that a zero is padding; neighbours differ.
Bytes Ramp(int64_t count) {
  Bytes bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(1 + i % 251);
  return bytes;
}

struct Case {
  Format format;
  Plane plane;
  Plane operand;
  int64_t rows;
  int64_t cols;
};

Encoding EncodingOf(Format format) { return {format, DefaultElement(format)}; }

Bytes Compact(const Case& c) { return Ramp(ScaleBytes(EncodingOf(c.format), c.plane, c.rows, c.cols)); }

absl::StatusOr<Bytes> Arrange(const Case& c, ScaleLayout layout) {
  absl::StatusOr<ScaleArrangement> arrangement =
      FindScaleArrangement(EncodingOf(c.format), c.plane, c.operand, c.rows, c.cols, layout);
  if (!arrangement.ok()) return arrangement.status();
  Bytes out(arrangement->bytes(), 0xee);
  ArrangeScales(*arrangement, Compact(c).data(), out.data());
  return out;
}

// The scale of the block that element [row, col] of the matrix is in, from the table of sizes in format.h.
uint8_t BlockScale(const Case& c, const Bytes& compact, int64_t row, int64_t col) {
  switch (c.format) {
    case Format::kMXFP8:
      return c.plane == Plane::kRowWise ? compact[row * ((c.cols + 31) / 32) + col / 32]
                                        : compact[row / 32 * c.cols + col];
    case Format::kMXFP8_2D:
      return compact[row / 32 * ((c.cols + 31) / 32) + col / 32];
    default:
      return compact[row / 16 * ((c.cols + 15) / 16) + col / 16];
  }
}

constexpr Plane kRow = Plane::kRowWise;
constexpr Plane kColumn = Plane::kColumnWise;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},    {31, 33},   {128, 128}, {129, 200},
                                                {300, 70}, {16, 1000}, {1000, 5}};
  for (const auto& [rows, cols] : shapes) {
    cases.push_back({Format::kMXFP8, kRow, kRow, rows, cols});
    cases.push_back({Format::kMXFP8, kColumn, kColumn, rows, cols});
    for (Format format : {Format::kMXFP8_2D, Format::kNVFP4_2D}) {
      cases.push_back({format, kRow, kRow, rows, cols});
      cases.push_back({format, kRow, kColumn, rows, cols});
    }
  }
  return cases;
}

class ScaleLayoutTest : public testing::TestWithParam<Case> {
 protected:
  const Case& c() const { return GetParam(); }
  int64_t block() const { return c().format == Format::kNVFP4_2D ? 16 : 32; }
  // Rows of the operand, and blocks along a row.
  int64_t operand_rows() const { return c().operand == kRow ? c().rows : c().cols; }
  int64_t operand_blocks() const { return ((c().operand == kRow ? c().cols : c().rows) + block() - 1) / block(); }
  int64_t padded_rows() const { return (operand_rows() + 127) / 128 * 128; }
  int64_t padded_blocks() const { return (operand_blocks() + 3) / 4 * 4; }

  // The padded matrix, by asking for the scale of one element of each block.
  Bytes Padded() const {
    const Bytes compact = Compact(c());
    Bytes padded(padded_rows() * padded_blocks());
    for (int64_t row = 0; row < operand_rows(); ++row) {
      for (int64_t col = 0; col < operand_blocks(); ++col) {
        padded[row * padded_blocks() + col] = c().operand == kRow ? BlockScale(c(), compact, row, col * block())
                                                                  : BlockScale(c(), compact, col * block(), row);
      }
    }
    return padded;
  }
};

TEST_P(ScaleLayoutTest, PaddedHasTheScaleOfEveryBlockOfTheOperand) {
  EXPECT_THAT(Arrange(c(), ScaleLayout::kPadded128x4), IsOkAndHolds(ElementsAreArray(Padded())));
}

// Tile after tile, as cuBLAS's documentation draws them: 32 lines of 4 rows that are 32 apart.
TEST_P(ScaleLayoutTest, SwizzledIsThePaddedMatrixInTiles) {
  const Bytes padded = Padded();
  Bytes expected;
  for (int64_t row = 0; row < padded_rows(); row += 128) {
    for (int64_t col = 0; col < padded_blocks(); col += 4) {
      for (int64_t line = 0; line < 32; ++line) {
        for (int64_t quarter = 0; quarter < 4; ++quarter) {
          const uint8_t* first = padded.data() + (row + quarter * 32 + line) * padded_blocks() + col;
          expected.insert(expected.end(), first, first + 4);
        }
      }
    }
  }
  EXPECT_THAT(Arrange(c(), ScaleLayout::kSwizzled128x4), IsOkAndHolds(ElementsAreArray(expected)));
}

TEST_P(ScaleLayoutTest, CompactIsWhatIsStored) {
  EXPECT_THAT(Arrange(c(), ScaleLayout::kCompact), IsOkAndHolds(ElementsAreArray(Compact(c()))));
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat(FormatName(c.format), "_", c.operand == kRow ? "row" : "column", "_", c.rows, "x", c.cols);
}

INSTANTIATE_TEST_SUITE_P(Operands, ScaleLayoutTest, testing::ValuesIn(Cases()), NameOf);

TEST(FindScaleArrangementTest, NoRowsHaveNoBytes) {
  EXPECT_THAT(Arrange({Format::kMXFP8, kRow, kRow, 0, 64}, ScaleLayout::kSwizzled128x4), IsOkAndHolds(Bytes{}));
  EXPECT_THAT(Arrange({Format::kMXFP8, kRow, kRow, 0, 64}, ScaleLayout::kCompact), IsOkAndHolds(Bytes{}));
}

TEST(FindScaleArrangementTest, ScalesOfOtherKindsAreGivenAsTheyAre) {
  EXPECT_THAT(Arrange({Format::kFP8Block128x128, kRow, kRow, 200, 300}, ScaleLayout::kCompact),
              IsOkAndHolds(ElementsAreArray(Ramp(2 * 3 * 4))));
  EXPECT_THAT(Arrange({Format::kFP8TensorDelayed, kRow, kRow, 200, 300}, ScaleLayout::kCompact),
              IsOkAndHolds(ElementsAreArray(Ramp(4))));
}

TEST(FindScaleArrangementTest, FormatsWithoutBlocksOfBytesAreRefused) {
  for (Format format : {Format::kFP32, Format::kBF16, Format::kFP16, Format::kFP8TensorCurrent,
                        Format::kFP8TensorDelayed, Format::kFP8Block128x128}) {
    for (ScaleLayout layout : {ScaleLayout::kPadded128x4, ScaleLayout::kSwizzled128x4}) {
      EXPECT_THAT(Arrange({format, kRow, kRow, 8, 8}, layout),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a format with block scales of one byte")))
          << FormatName(format);
    }
  }
  EXPECT_THAT(Arrange({Format::kBF16, kRow, kRow, 8, 8}, ScaleLayout::kCompact),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a format with scales, got BF16")));
}

TEST(FindScaleArrangementTest, UnknownLayoutsAreRefused) {
  for (int layout : {0, 4, 255}) {
    EXPECT_THAT(Arrange({Format::kMXFP8, kRow, kRow, 8, 8}, static_cast<ScaleLayout>(layout)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("want compact, padded or swizzled, got number ", layout))));
  }
}

// The blocks of one plane of MXFP8 run in one direction.
TEST(FindScaleArrangementTest, OperandsThatThePlaneDoesNotServeAreRefused) {
  EXPECT_THAT(Arrange({Format::kMXFP8, kRow, kColumn, 8, 8}, ScaleLayout::kPadded128x4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want the row-wise operand")));
  EXPECT_THAT(Arrange({Format::kMXFP8, kColumn, kRow, 8, 8}, ScaleLayout::kPadded128x4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got the row-wise operand")));
}

}  // namespace
}  // namespace paramshard
