#include "client/ctl/codec_files.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr Encoding kMxfp8{Format::kMXFP8, ElementType::kE4M3, true};

constexpr Encoding kNvfp4{Format::kNVFP4_2D, ElementType::kE2M1};

NpyArray FloatArray(std::vector<int64_t> shape, const std::vector<float>& values) {
  NpyArray array{"<f4", std::move(shape), std::vector<uint8_t>(values.size() * sizeof(float))};
  if (!values.empty()) std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

class CodecFilesTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  std::string Write(const std::string& name, const NpyArray& array) const {
    EXPECT_OK(WriteNpy(Path(name), array));
    return Path(name);
  }

  NpyArray Read(const std::string& name) const {
    const absl::StatusOr<NpyArray> array = ReadNpy(Path(name));
    EXPECT_TRUE(array.ok()) << array.status();
    return array.ok() ? *array : NpyArray();
  }

  std::vector<std::string> Names(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Path(directory)))
      names.push_back(entry.path().filename());
    return names;
  }

  const test::TemporaryDirectory directory_;
};

TEST_F(CodecFilesTest, EachFormatHasItsFiles) {
  const std::string input = Write("in.npy", FloatArray({3, 40}, std::vector<float>(120, 1.5f)));
  ASSERT_OK(EncodeFile(kMxfp8, input, Path("mx")));
  EXPECT_THAT(Names("mx"), UnorderedElementsAre("row_data.npy", "row_scale.npy", "col_data.npy", "col_scale.npy",
                                                "dequantized.npy"));
  EXPECT_THAT(Read("mx/row_scale.npy").shape, ElementsAre(3, 2));
  EXPECT_THAT(Read("mx/col_scale.npy").shape, ElementsAre(1, 40));
  EXPECT_THAT(Read("mx/col_data.npy").shape, ElementsAre(3, 40));
  ASSERT_OK(EncodeFile({Format::kFP8Block128x128}, input, Path("block")));
  EXPECT_THAT(Names("block"), UnorderedElementsAre("row_data.npy", "scale_inv.npy", "dequantized.npy"));
  EXPECT_EQ(Read("block/scale_inv.npy").dtype, "<f4");
  EXPECT_THAT(Read("block/scale_inv.npy").shape, ElementsAre(1, 1));
  ASSERT_OK(EncodeFile({Format::kFP8TensorCurrent}, input, Path("tensor")));
  EXPECT_THAT(Names("tensor"), UnorderedElementsAre("row_data.npy", "scale_inv.npy", "amax.npy", "dequantized.npy"));
  EXPECT_THAT(Read("tensor/scale_inv.npy").shape, ElementsAre(1));
  EXPECT_THAT(Read("tensor/amax.npy").shape, ElementsAre(1));
  ASSERT_OK(EncodeFile({Format::kMXFP8_2D}, input, Path("mx2d")));
  EXPECT_THAT(Names("mx2d"), UnorderedElementsAre("row_data.npy", "row_scale.npy", "dequantized.npy"));
  EXPECT_THAT(Read("mx2d/row_scale.npy").shape, ElementsAre(1, 2));
  ASSERT_OK(EncodeFile(kNvfp4, input, Path("fp4")));
  EXPECT_THAT(Names("fp4"), UnorderedElementsAre("row_data.npy", "row_scale.npy", "amax.npy", "dequantized.npy"));
  EXPECT_THAT(Read("fp4/row_data.npy").shape, ElementsAre(3, 20));
  EXPECT_THAT(Read("fp4/row_scale.npy").shape, ElementsAre(1, 3));
  for (const Format format : {Format::kFP32, Format::kBF16, Format::kFP16}) {
    const std::string name(FormatName(format));
    ASSERT_OK(EncodeFile({format}, input, Path(name)));
    EXPECT_THAT(Names(name), UnorderedElementsAre("row_data.npy", "dequantized.npy"));
    EXPECT_EQ(Read(name + "/row_data.npy").dtype, format == Format::kFP32 ? "<f4" : "<u2");
    EXPECT_EQ(Read(name + "/dequantized.npy").bytes, Read("in.npy").bytes);
  }
}

TEST_F(CodecFilesTest, FilesOfAnotherFormatAreRemoved) {
  const std::string input = Write("in.npy", FloatArray({3, 40}, std::vector<float>(120, 1.5f)));
  ASSERT_OK(EncodeFile(kMxfp8, input, Path("out")));
  std::ofstream(Path("out/notes.txt")) << "another's";
  ASSERT_OK(EncodeFile({Format::kBF16}, input, Path("out")));
  EXPECT_THAT(Names("out"), UnorderedElementsAre("row_data.npy", "dequantized.npy", "notes.txt"));
}

TEST_F(CodecFilesTest, DelayedScaleIsTheOneGiven) {
  const std::string input = Write("in.npy", FloatArray({1, 2}, {3.0f, -24.0f}));
  ASSERT_OK(EncodeFile({Format::kFP8TensorDelayed}, input, Path("out"), 4.0f));
  EXPECT_EQ(Read("out/row_data.npy").bytes, (std::vector<uint8_t>{0x54, 0xec}));
  EXPECT_EQ(Read("out/scale_inv.npy").bytes, FloatArray({1}, {0.25f}).bytes);
  EXPECT_EQ(Read("out/amax.npy").bytes, FloatArray({1}, {24.0f}).bytes);
  EXPECT_EQ(Read("out/dequantized.npy").bytes, Read("in.npy").bytes);
}

TEST_F(CodecFilesTest, OddColumnsOfNvfp4AreSaid) {
  const std::string input = Write("in.npy", FloatArray({2, 3}, {6.0f, 3.0f, 1.5f, 0.0f, -6.0f, 4.0f}));
  ASSERT_OK(EncodeFile(kNvfp4, input, Path("planes")));
  const auto decode = [&](std::optional<int64_t> columns) {
    return DecodeFiles(kNvfp4, Plane::kRowWise, Path("planes"), Path("out.npy"), columns);
  };
  ASSERT_OK(decode(3));
  EXPECT_EQ(Read("out.npy").bytes, Read("planes/dequantized.npy").bytes);
  ASSERT_OK(decode(std::nullopt));
  EXPECT_THAT(Read("out.npy").shape, ElementsAre(2, 4));
  for (int64_t columns : {2, 5}) {
    EXPECT_THAT(decode(columns), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("columns, got rows of 4")));
  }
  std::filesystem::remove(Path("planes/amax.npy"));
  EXPECT_THAT(decode(3), StatusIs(absl::StatusCode::kNotFound, HasSubstr("planes/amax.npy")));
}

TEST_F(CodecFilesTest, AnyShapeIsAMatrixOfItsLastDimension) {
  const std::pair<std::vector<int64_t>, std::vector<int64_t>> cases[] = {
      {{}, {1, 1}}, {{1}, {1, 1}}, {{6}, {1, 6}}, {{2, 3}, {2, 3}}, {{2, 1, 3, 4}, {6, 4}}};
  for (const auto& [shape, matrix] : cases) {
    const std::string input = Write("in.npy", FloatArray(shape, std::vector<float>(matrix[0] * matrix[1], 2.0f)));
    ASSERT_OK(EncodeFile(kMxfp8, input, Path("out")));
    EXPECT_EQ(Read("out/row_data.npy").shape, matrix);
    EXPECT_EQ(Read("out/dequantized.npy").shape, matrix);
  }
}

TEST_F(CodecFilesTest, DecodeGivesWhatEncodeFoundDecoded) {
  const std::string input = Write("in.npy", FloatArray({2, 3}, {1.0f, -2.0f, 3.3f, 0.0f, 1e-20f, 400.0f}));
  for (const Encoding& encoding :
       {kMxfp8, Encoding{Format::kFP8Block128x128, ElementType::kE5M2, false}, Encoding{Format::kFP32},
        Encoding{Format::kBF16}, Encoding{Format::kFP16}, Encoding{Format::kFP8TensorCurrent},
        Encoding{Format::kFP8TensorDelayed}, Encoding{Format::kMXFP8_2D}}) {
    ASSERT_OK(EncodeFile(encoding, input, Path("planes")));
    ASSERT_OK(DecodeFiles(encoding, Plane::kRowWise, Path("planes"), Path("out.npy")));
    EXPECT_EQ(Read("out.npy").bytes, Read("planes/dequantized.npy").bytes);
    EXPECT_THAT(Read("out.npy").shape, ElementsAre(2, 3));
  }
}

TEST_F(CodecFilesTest, ColumnsAreDecodedWithTheirOwnScales) {
  const std::string input = Write("in.npy", FloatArray({2, 2}, {1.0f, 1024.0f, 0.5f, 512.0f}));
  ASSERT_OK(EncodeFile(kMxfp8, input, Path("planes")));
  ASSERT_OK(DecodeFiles(kMxfp8, Plane::kColumnWise, Path("planes"), Path("out.npy")));
  EXPECT_EQ(Read("out.npy").bytes, Read("in.npy").bytes);
}

TEST_F(CodecFilesTest, WhatCannotBeEncodedIsRefusedBeforeAnythingIsWritten) {
  const std::string input = Write("in.npy", FloatArray({2, 2}, {1, 2, 3, 4}));
  EXPECT_THAT(EncodeFile({Format::kMXFP8, ElementType::kE2M1}, input, Path("out")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MXFP8")));
  EXPECT_THAT(EncodeFile(kMxfp8, Path("none.npy"), Path("out")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.npy")));
  const std::string bytes = Write("bytes.npy", {"|u1", {2}, {1, 2}});
  EXPECT_THAT(EncodeFile(kMxfp8, bytes, Path("out")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want dtype <f4, got |u1")));
  const std::string empty = Write("empty.npy", FloatArray({0, 5}, {}));
  EXPECT_THAT(EncodeFile(kMxfp8, empty, Path("out")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least one element")));
  std::ofstream(Path("text.npy")) << "no numbers";
  EXPECT_THAT(EncodeFile(kMxfp8, Path("text.npy"), Path("out")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a .npy file")));
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(CodecFilesTest, OutputThatIsAFileIsRefused) {
  const std::string input = Write("in.npy", FloatArray({1}, {1}));
  EXPECT_THAT(EncodeFile(kMxfp8, input, input), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("create ")));
}

TEST_F(CodecFilesTest, PlanesThatDoNotFitTogetherAreRefused) {
  const std::string input = Write("in.npy", FloatArray({3, 40}, std::vector<float>(120, 1.5f)));
  const auto decode = [&](Plane plane = Plane::kRowWise) {
    return DecodeFiles(kMxfp8, plane, Path("planes"), Path("out.npy"));
  };
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("planes/row_data.npy")));
  ASSERT_OK(EncodeFile(kMxfp8, input, Path("planes")));
  Write("planes/row_scale.npy", {"|u1", {3, 1}, {1, 2, 3}});
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want |u1 [3, 2], got |u1 [3, 1]")));
  Write("planes/row_scale.npy", FloatArray({3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want |u1 [3, 2], got <f4 [3, 2]")));
  Write("planes/row_data.npy", {"<u2", {1, 1}, {1, 2}});
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want |u1 [1, 1], got <u2 [1, 1]")));
  Write("planes/row_data.npy", {"|u1", {2}, {1, 2}});
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want two dimensions")));
  Write("planes/row_data.npy", {"|u1", {0, 2}, {}});
  EXPECT_THAT(decode(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least one element")));
  EXPECT_THAT(
      DecodeFiles({Format::kBF16}, Plane::kColumnWise, Path("planes"), Path("out.npy")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a format with a column-wise plane, got BF16")));
  EXPECT_OK(decode(Plane::kColumnWise));
}

}  // namespace
}  // namespace paramshard::ctl
