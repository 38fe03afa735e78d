#include "kernels/formats/format.h"

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

TEST(FormatTest, NamesParseBack) {
  for (const FormatTraits& traits : kFormats) {
    EXPECT_EQ(FormatName(traits.format), traits.name);
    EXPECT_EQ(ParseFormat(traits.name).value(), traits.format);
    EXPECT_THAT(FormatNames(), HasSubstr(traits.name));
  }
  EXPECT_EQ(FormatName(Format::kFP8Block128x128), "FP8_BLOCK_128X128");
  EXPECT_EQ(FormatName(static_cast<Format>(99)), "UNKNOWN");
}

TEST(FormatTest, ElementNamesParseBack) {
  for (int number = 0; number <= 3; ++number) {
    const ElementType element = static_cast<ElementType>(number);
    EXPECT_EQ(ParseElementType(ElementTypeName(element)).value(), element);
  }
}

TEST(FormatTest, UnknownNameIsRefused) {
  const absl::Status status = ParseFormat("mxfp8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"mxfp8\""));
  EXPECT_EQ(ParseElementType("E3M4").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FormatTest, EncodableFormatsAreOk) {
  for (const FormatTraits& traits : kFormats) {
    EXPECT_TRUE(CheckEncodable({traits.format, DefaultElement(traits.format)}).ok()) << traits.name;
  }
  EXPECT_TRUE(CheckEncodable({Format::kNVFP4_2D, ElementType::kE2M1}).ok());
  EXPECT_TRUE(CheckEncodable({Format::kBF16, ElementType::kNone}).ok());
  EXPECT_TRUE(CheckEncodable({Format::kMXFP8, ElementType::kE5M2}).ok());
  EXPECT_TRUE(CheckEncodable({Format::kFP8Block128x128, ElementType::kE4M3, false}).ok());
}

TEST(FormatTest, ElementThatDoesNotFitIsInvalid) {
  const absl::Status status = CheckEncodable({Format::kMXFP8, ElementType::kE2M1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "format MXFP8 has no element type E2M1");
  EXPECT_EQ(CheckEncodable({Format::kNVFP4_2D, ElementType::kE4M3}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckEncodable({static_cast<Format>(0)}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FormatTest, SizesCountEdgeBlocks) {
  const Encoding block = {Format::kFP8Block128x128};
  EXPECT_EQ(DataBytes(block, 129, 300), 129 * 300);
  EXPECT_EQ(ScaleShape(block, Plane::kRowWise, 129, 300), (MatrixShape{2, 3}));
  EXPECT_EQ(ScaleBytes(block, Plane::kRowWise, 129, 300), 2 * 3 * 4);
  EXPECT_EQ(ScaleBytes(block, Plane::kColumnWise, 129, 300), 0);

  const Encoding mx = {Format::kMXFP8};
  EXPECT_EQ(ScaleShape(mx, Plane::kRowWise, 33, 65), (MatrixShape{33, 3}));
  EXPECT_EQ(ScaleShape(mx, Plane::kColumnWise, 33, 65), (MatrixShape{2, 65}));
  EXPECT_EQ(ScaleBytes(mx, Plane::kColumnWise, 33, 65), 130);

  EXPECT_EQ(DataBytes({Format::kNVFP4_2D, ElementType::kE2M1}, 3, 5), 9);
  EXPECT_EQ(DataBytes({Format::kFP32}, 3, 5), 60);
  EXPECT_EQ(DataBytes({Format::kBF16}, 3, 5), 30);
  EXPECT_EQ(ScaleBytes({Format::kBF16}, Plane::kRowWise, 3, 5), 0);
}

TEST(FormatTest, EmptyExtentHasNoBytes) {
  for (Format format : {Format::kFP32, Format::kFP8Block128x128, Format::kMXFP8}) {
    EXPECT_EQ(DataBytes({format}, 0, 77), 0);
    EXPECT_EQ(ScaleBytes({format}, Plane::kRowWise, 0, 77), 0);
    EXPECT_EQ(ScaleBytes({format}, Plane::kColumnWise, 0, 77), 0);
  }
}

TEST(FormatTest, ScaleOfTheTensorBelongsToEmptyExtentsToo) {
  for (Format format : {Format::kFP8TensorCurrent, Format::kFP8TensorDelayed}) {
    EXPECT_EQ(ScaleBytes({format}, Plane::kRowWise, 0, 77), 4);
    EXPECT_EQ(ScaleBytes({format}, Plane::kColumnWise, 0, 77), 0);
    EXPECT_EQ(AmaxBytes(format), 0);
  }
  EXPECT_EQ(AmaxBytes(Format::kNVFP4_2D), 4);
}

TEST(FormatTest, FormatsOfTheWholeTensorNeedItsAmax) {
  for (const FormatTraits& traits : kFormats) {
    const Format format = traits.format;
    const bool after = format == Format::kFP8TensorCurrent || format == Format::kNVFP4_2D;
    EXPECT_EQ(EncodesAfterAmax(format), after) << traits.name;
    EXPECT_EQ(NeedsAmax(format), after || format == Format::kFP8TensorDelayed) << traits.name;
  }
}

TEST(FormatTest, DefaultsAreThoseOfTheFormat) {
  for (const FormatTraits& traits : kFormats) {
    const bool reads = traits.format == Format::kFP8TensorCurrent || traits.format == Format::kFP8Block128x128;
    EXPECT_EQ(ReadsPowerOfTwoScales(traits.format), reads) << traits.name;
  }
  EXPECT_TRUE(DefaultPowerOfTwoScales(Format::kFP8Block128x128));
  EXPECT_FALSE(DefaultPowerOfTwoScales(Format::kFP8TensorCurrent));
}

TEST(FormatTest, SizesAre64Bit) {
  EXPECT_EQ(DataBytes({Format::kFP32}, 1 << 20, 1 << 20), int64_t{1} << 42);
  EXPECT_EQ(ScaleBytes({Format::kMXFP8}, Plane::kRowWise, 1 << 20, 1 << 20), int64_t{1} << 35);
}

// Invariants of every row of the table.
TEST(FormatTest, TraitsOfAFormatGoTogether) {
  for (const FormatTraits& traits : kFormats) {
    SCOPED_TRACE(traits.name);
    EXPECT_EQ(traits.scale_type == ScaleType::kNone, traits.row_wise_block.rows == 0);
    EXPECT_TRUE(traits.row_wise_block.rows != 0 || traits.column_wise_block.rows == 0);
    for (const MatrixShape& block : {traits.row_wise_block, traits.column_wise_block}) {
      // Extents are cut between rows of blocks.
      if (block.rows != 0 && block.rows != kUnbounded) {
        EXPECT_EQ(traits.granule_rows % block.rows, 0);
      }
    }
    EXPECT_TRUE(traits.amax_bytes == 0 || traits.amax_use == AmaxUse::kBeforeEncoding);
  }
}

TEST(FormatTest, GranulesFollowTheBlocks) {
  EXPECT_EQ(GranuleRows(Format::kFP8Block128x128), 128);
  EXPECT_EQ(GranuleRows(Format::kMXFP8), 32);
  EXPECT_EQ(GranuleRows(Format::kMXFP8_2D), 32);
  EXPECT_EQ(GranuleRows(Format::kNVFP4_2D), 16);
  EXPECT_EQ(GranuleRows(Format::kFP8TensorCurrent), 1);
  EXPECT_TRUE(HasColumnPlane(Format::kMXFP8));
  EXPECT_FALSE(HasColumnPlane(Format::kMXFP8_2D));
}

}  // namespace
}  // namespace paramshard
