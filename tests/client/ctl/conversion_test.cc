#include "client/ctl/conversion.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/encoding.h"
#include "common/safetensors/checkpoint.h"
#include "common/safetensors/conversion.h"
#include "common/safetensors/sharding_info.h"
#include "common/weights/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "nlohmann/json.hpp"
#include "tests/common/safetensors_files.h"
#include "tests/support/status_matchers.h"

namespace paramshard::ctl {
namespace {

using safetensors::BytesOf;
using safetensors::Checkpoint;
using safetensors::Dtype;
using safetensors::FloatTensor;
using safetensors::TestTensor;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<float> RandomValues(int64_t count, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Encoding Of(Format format) { return MakeEncoding(format, std::nullopt, std::nullopt); }

class ConversionTest : public safetensors::FolderTest {
 protected:
  // Converts "in.safetensors" to "out.safetensors", unless the options name others.
  absl::StatusOr<ConversionReport> Run(ConversionOptions options) {
    if (options.input.empty()) options.input = Path("in.safetensors");
    if (options.output.empty()) options.output = Path("out.safetensors");
    return Convert(options, {});
  }
  absl::StatusOr<ConversionReport> RunFormat(Format format) {
    ConversionOptions options;
    options.encoding = Of(format);
    return Run(options);
  }
  absl::StatusOr<ConversionReport> RunRules(const std::string& rules) {
    ConversionOptions options;
    options.rules_path = WriteText("rules", rules);
    return Run(options);
  }
  absl::StatusOr<ConversionReport> Dequantize(Format format, const std::string& input, const std::string& output) {
    ConversionOptions options;
    options.input = input;
    options.output = output;
    options.dequantized_format = format;
    return Run(options);
  }

  std::vector<uint8_t> Bytes(const std::string& file, const std::string& tensor) const {
    const auto checkpoint = Checkpoint::Open(Path(file));
    EXPECT_OK(checkpoint);
    const Checkpoint::Tensor* found = checkpoint->Find(tensor);
    if (found == nullptr) {
      ADD_FAILURE() << "no " << tensor << " in " << file;
      return {};
    }
    std::vector<uint8_t> bytes(found->info->size_bytes);
    EXPECT_OK(found->file->Read(*found->info, 0, absl::MakeSpan(bytes)));
    return bytes;
  }
  // "NAME DTYPE [shape]" of every tensor.
  std::vector<std::string> Tensors(const std::string& file) const {
    std::vector<std::string> texts;
    const auto checkpoint = Checkpoint::Open(Path(file));
    EXPECT_OK(checkpoint);
    for (const auto& [name, tensor] : checkpoint->tensors()) {
      texts.push_back(absl::StrCat(name, " ", safetensors::DtypeName(tensor.info->dtype), " [",
                                   absl::StrJoin(tensor.info->shape, ","), "]"));
    }
    return texts;
  }
};

TEST_F(ConversionTest, TensorsInPartsAreRefused) {
  for (const int rank : {0, 1}) {
    safetensors::WriteFile(Path(absl::StrCat("shard-", rank, ".safetensors")),
                           {safetensors::FloatTensor("w", {1, 2}, {1, 2})},
                           {{"DCP_SHARDING_INFO", absl::StrCat("{\"w\":{\"saved_offsets\":[", rank, ",0]}}")}});
  }
  ConversionOptions options;
  options.input = Path("");
  options.output = Path("out.safetensors");
  options.encoding = Encoding{.format = Format::kBF16};
  EXPECT_THAT(Convert(options, {}), StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("in parts")));
}

TEST_F(ConversionTest, EveryFormatHasItsTensors) {
  WriteTensors("in.safetensors", {FloatTensor("w", {130, 33}, RandomValues(130 * 33))});
  const std::pair<Format, std::vector<std::string>> cases[] = {
      {Format::kFP32, {"w F32 [130,33]"}},
      {Format::kBF16, {"w BF16 [130,33]"}},
      {Format::kFP16, {"w F16 [130,33]"}},
      {Format::kFP8TensorCurrent, {"w F8_E4M3 [130,33]", "w_scale F32 [1]"}},
      {Format::kFP8Block128x128, {"w F8_E4M3 [130,33]", "w_scale_inv F32 [2,1]"}},
      {Format::kMXFP8, {"w F8_E4M3 [130,33]", "w_scale U8 [130,2]"}},
      {Format::kMXFP8_2D, {"w F8_E4M3 [130,33]", "w_scale U8 [5,2]"}},
      {Format::kNVFP4_2D, {"w_amax F32 [1]", "w_packed U8 [130,17]", "w_scale F8_E4M3 [9,3]"}},
  };
  // FP8_TENSOR_DELAYED needs a history, which files do not have.
  EXPECT_EQ(std::size(cases), std::size(kFormats) - 1);
  for (const auto& [format, tensors] : cases) {
    ASSERT_OK(RunFormat(format)) << FormatName(format);
    EXPECT_THAT(Tensors("out.safetensors"), testing::ElementsAreArray(tensors)) << FormatName(format);
  }
}

// More rows than a band holds: what is written band by band is what one call encodes, and decodes to.
TEST_F(ConversionTest, BytesAreThoseOfTheWholeTensor) {
  const MatrixShape matrix{4099, 2050};
  std::vector<float> values = RandomValues(matrix.rows * matrix.cols);
  values.back() = 1000;  // the amax is in the last band
  WriteTensors("in.safetensors", {FloatTensor("w", {matrix.rows, matrix.cols}, values)});
  for (const Format format : {Format::kFP8TensorCurrent, Format::kFP8Block128x128, Format::kMXFP8, Format::kNVFP4_2D}) {
    SCOPED_TRACE(FormatName(format));
    const Encoding encoding = Of(format);
    ASSERT_OK_AND_ASSIGN(const ConversionReport report, RunFormat(format));
    std::vector<uint8_t> data(DataBytes(encoding, matrix.rows, matrix.cols));
    std::vector<uint8_t> scales(ScaleBytes(encoding, Plane::kRowWise, matrix.rows, matrix.cols));
    std::vector<uint8_t> amax(4);
    EncodePlanes(encoding, values.data(), matrix.rows, matrix.cols, {data.data(), scales.data(), amax.data()}, {},
                 {1000, 1});
    const bool is_4bit = format == Format::kNVFP4_2D;
    EXPECT_TRUE(Bytes("out.safetensors", is_4bit ? "w_packed" : "w") == data);
    EXPECT_TRUE(Bytes("out.safetensors", format == Format::kFP8Block128x128 ? "w_scale_inv" : "w_scale") == scales);
    if (is_4bit) {
      EXPECT_EQ(Bytes("out.safetensors", "w_amax"), amax);
    }

    std::vector<float> decoded(values.size());
    DecodePlane(encoding, Plane::kRowWise, {data.data(), scales.data(), amax.data()}, matrix.rows, matrix.cols,
                decoded.data());
    ASSERT_OK(Dequantize(Format::kFP32, Path("out.safetensors"), Path("back.safetensors")));
    EXPECT_TRUE(Bytes("back.safetensors", "w") == BytesOf(decoded));
    double error = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(decoded[i]) - values[i], 2);
      norm += std::pow(static_cast<double>(values[i]), 2);
    }
    ASSERT_EQ(report.tensors.size(), 1u);
    EXPECT_NEAR(report.tensors[0].error.relative_rms(), std::sqrt(error / norm), 1e-9);
  }
}

TEST_F(ConversionTest, BothPlanesOfMxfp8AreKeptWhenAskedFor) {
  const std::vector<float> values = RandomValues(70 * 40);
  WriteTensors("in.safetensors", {FloatTensor("w", {70, 40}, values)});
  ConversionOptions options;
  options.encoding = Of(Format::kMXFP8);
  options.has_columns = true;
  ASSERT_OK(Run(options));
  EXPECT_THAT(Tensors("out.safetensors"), ElementsAre("w F8_E4M3 [70,40]", "w_column F8_E4M3 [70,40]",
                                                      "w_column_scale U8 [3,40]", "w_scale U8 [70,2]"));
  std::vector<uint8_t> data(70 * 40), scales(3 * 40);
  EncodePlanes(*options.encoding, values.data(), 70, 40, {}, {data.data(), scales.data()});
  EXPECT_EQ(Bytes("out.safetensors", "w_column"), data);
  EXPECT_EQ(Bytes("out.safetensors", "w_column_scale"), scales);
  ASSERT_OK(Dequantize(Format::kBF16, Path("out.safetensors"), Path("back.safetensors")));
  EXPECT_THAT(Tensors("back.safetensors"), ElementsAre("w BF16 [70,40]"));
}

TEST_F(ConversionTest, WithoutARuleOnlyMatricesOfPlainFloatsAreEncoded) {
  WriteTensors("in.safetensors",
               {FloatTensor("matrix", {2, 2}, {1, 2, 3, 4}),
                {"half", Dtype::kF16, {1, 1, 1}, BytesOf<uint16_t>({0x3c00})},
                {"brain", Dtype::kBF16, {1, 1}, BytesOf<uint16_t>({0x3f80})},
                FloatTensor("vector", {2}, {1, 2}),
                FloatTensor("scalar", {}, {1}),
                FloatTensor("empty", {0, 2}, {}),
                {"indices", Dtype::kI64, {1, 2}, BytesOf<int64_t>({1, 2})},
                {"double", Dtype::kF64, {1, 1}, BytesOf<double>({1.5})}},
               {{"format", "pt"}});
  ASSERT_OK_AND_ASSIGN(const ConversionReport report, RunFormat(Format::kMXFP8_2D));
  EXPECT_THAT(Tensors("out.safetensors"),
              ElementsAre("brain F8_E4M3 [1,1]", "brain_scale U8 [1,1]", "double F64 [1,1]", "empty F32 [0,2]",
                          "half F8_E4M3 [1,1,1]", "half_scale U8 [1,1]", "indices I64 [1,2]", "matrix F8_E4M3 [2,2]",
                          "matrix_scale U8 [1,1]", "scalar F32 []", "vector F32 [2]"));
  EXPECT_EQ(report.tensors.size(), 3u);
  EXPECT_EQ(report.carried_count, 5);
  EXPECT_EQ(Bytes("out.safetensors", "indices"), BytesOf<int64_t>({1, 2}));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path("out.safetensors")));
  const auto& metadata = checkpoint.files()[0].metadata();
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("paramshard.version"), "1");
  const auto entry = nlohmann::json::parse(metadata.at("paramshard.encodings")).at("matrix");
  EXPECT_EQ(entry["format"], "MXFP8_2D");
  EXPECT_EQ(entry["element"], "E4M3");
  EXPECT_EQ(entry["shape"], nlohmann::json({2, 2}));
  EXPECT_EQ(entry["scale_shape"], nlohmann::json({1, 1}));

  ASSERT_OK(Dequantize(Format::kFP32, Path("out.safetensors"), Path("back.safetensors")));
  EXPECT_EQ(Bytes("back.safetensors", "brain"), BytesOf<float>({1}));
  EXPECT_EQ(Bytes("back.safetensors", "half"), BytesOf<float>({1}));
  EXPECT_EQ(Bytes("back.safetensors", "vector"), BytesOf<float>({1, 2}));
  EXPECT_EQ(Tensors("back.safetensors").size(), 8u);
}

TEST_F(ConversionTest, TheFirstRuleThatMatchesCounts) {
  WriteTensors("in.safetensors",
               {FloatTensor("layers.0.norm.weight", {2}, {1, 2}), FloatTensor("layers.0.w", {2, 2}, {1, 2, 3, 4}),
                FloatTensor("lm_head.weight", {2, 2}, {1, 2, 3, 4}), FloatTensor("bias", {2}, {1, 2})});
  ASSERT_OK(RunRules("# comment\n\n*.norm.*: KEEP\nlm_head.weight: BF16\n*: FP8_BLOCK_128X128 E5M2\n"));
  EXPECT_THAT(Tensors("out.safetensors"),
              ElementsAre("bias F8_E5M2 [2]", "bias_scale_inv F32 [1,1]", "layers.0.norm.weight F32 [2]",
                          "layers.0.w F8_E5M2 [2,2]", "layers.0.w_scale_inv F32 [1,1]", "lm_head.weight BF16 [2,2]"));
  // A format for the rest.
  ConversionOptions options;
  options.rules_path = WriteText("rules", "lm_head.*: KEEP\n");
  options.encoding = Of(Format::kBF16);
  ASSERT_OK(Run(options));
  EXPECT_THAT(Tensors("out.safetensors"), ElementsAre("bias F32 [2]", "layers.0.norm.weight F32 [2]",
                                                      "layers.0.w BF16 [2,2]", "lm_head.weight F32 [2,2]"));
}

TEST_F(ConversionTest, RulesThatMeanNothingAreRefused) {
  WriteTensors("in.safetensors", {FloatTensor("w", {2, 2}, {1, 2, 3, 4})});
  EXPECT_THAT(RunRules("w: BF16\nx*: BF16\n"),
              StatusIs(kInvalid, AllOf(HasSubstr("rules:2"), HasSubstr("no tensor matches x*"))));
  EXPECT_THAT(RunRules("w\n"), StatusIs(kInvalid, HasSubstr("rules:1: want two texts")));
  EXPECT_THAT(RunRules("w: FP7\n"),
              StatusIs(kInvalid, AllOf(HasSubstr("rules:1: format: want "), HasSubstr("got \"FP7\""))));
  EXPECT_THAT(RunRules("w: MXFP8 E2M1\n"), StatusIs(kInvalid, HasSubstr("no element type E2M1")));
  EXPECT_THAT(RunRules("w: MXFP8 power_of_two_scales=1\n"), StatusIs(kInvalid, HasSubstr("true or false")));
  EXPECT_THAT(RunRules("w: FP8_TENSOR_DELAYED\n"), StatusIs(kInvalid, HasSubstr("use FP8_TENSOR_CURRENT")));
  EXPECT_THAT(RunFormat(Format::kFP8TensorDelayed),
              StatusIs(kInvalid, HasSubstr("FP8_TENSOR_DELAYED is not supported")));
  ConversionOptions options;
  options.rules_path = Path("none");
  EXPECT_THAT(Run(options), StatusIs(absl::StatusCode::kNotFound));
  options.rules_path = Path(".");
  EXPECT_THAT(Run(options), StatusIs(testing::_, HasSubstr("regular file")));
  std::filesystem::resize_file(Path("rules"), (64 << 20) + 1);
  options.rules_path = Path("rules");
  EXPECT_THAT(Run(options), StatusIs(testing::_, HasSubstr("67108864")));
  EXPECT_THAT(Names(), UnorderedElementsAre("in.safetensors", "rules"));
}

TEST_F(ConversionTest, ShardsBecomeShardsOrOneFile) {
  std::filesystem::create_directory(Path("in"));
  WriteTensors("in/one.safetensors", {FloatTensor("a", {2, 2}, {1, 2, 3, 4}), FloatTensor("b", {1}, {2})});
  WriteTensors("in/two.safetensors", {FloatTensor("c", {1, 1}, {3})});
  WriteText(
      "in/model.safetensors.index.json",
      safetensors::SerializeIndex({{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}, 24));
  ConversionOptions options;
  options.input = Path("in");
  options.encoding = Of(Format::kFP8Block128x128);
  options.output = Path("out/deep");
  ASSERT_OK(Run(options));
  const std::vector<std::string> tensors = {"a F8_E4M3 [2,2]", "a_scale_inv F32 [1,1]", "b F32 [1]", "c F8_E4M3 [1,1]",
                                            "c_scale_inv F32 [1,1]"};
  EXPECT_EQ(Tensors("out/deep"), tensors);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path("out/deep")));
  EXPECT_EQ(checkpoint.files().size(), 2u);
  options.output = Path("one.safetensors");
  ASSERT_OK(Run(options));
  EXPECT_EQ(Tensors("one.safetensors"), tensors);
  for (const char* quantized : {"out/deep", "one.safetensors"}) {
    ASSERT_OK(Dequantize(Format::kFP32, Path(quantized), Path("back")));
    EXPECT_THAT(Tensors("back"), ElementsAre("a F32 [2,2]", "b F32 [1]", "c F32 [1,1]"));
    std::filesystem::remove_all(Path("back"));
  }
  // A folder whose files from before would be read instead.
  options.output = Path("out/deep");
  ASSERT_OK(Run(options));
  WriteTensors("out/deep/model.safetensors", {FloatTensor("a", {2, 2}, {5, 6, 7, 8})});
  EXPECT_THAT(Run(options),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("out/deep/model.safetensors: already")));
  options.input = Path("in/one.safetensors");
  std::filesystem::remove(Path("out/deep/model.safetensors"));
  EXPECT_THAT(Run(options), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("model.safetensors.index.json")));
}

TEST_F(ConversionTest, AFolderWithOtherWeightsIsRefused) {
  for (const char* const folder : {"indexed", "out"}) std::filesystem::create_directory(Path(folder));
  WriteTensors("indexed/one.safetensors", {FloatTensor("a", {1, 1}, {2})});
  WriteText("indexed/model.safetensors.index.json", safetensors::SerializeIndex({{"a", "one.safetensors"}}, 4));
  ConversionOptions options;
  options.encoding = Of(Format::kBF16);
  options.input = Path("indexed");
  options.output = Path("out/");
  for (const char* const other : {"model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin",
                                  "pytorch_model.bin.index.json", "model.fp16.safetensors.index.json"}) {
    WriteText(absl::StrCat("out/", other), "");
    EXPECT_THAT(Run(options), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(other)));
    EXPECT_TRUE(std::filesystem::remove(Path(absl::StrCat("out/", other))));
    EXPECT_TRUE(std::filesystem::is_empty(Path("out")));
  }
  // Files of the same names are replaced.
  WriteText("out/tokenizer.json", "{}");
  ASSERT_OK(Run(options));
  ASSERT_OK(Run(options));
}

TEST_F(ConversionTest, QuantizedValuesAreNotQuantizedAgain) {
  WriteTensors("in.safetensors", {FloatTensor("w", {2, 2}, {1, 2, 3, 4})});
  ASSERT_OK(RunFormat(Format::kMXFP8));
  ASSERT_OK(Dequantize(Format::kFP32, Path("out.safetensors"), Path("back.safetensors")));
  for (const char* file : {"out.safetensors", "back.safetensors"}) {
    ConversionOptions options;
    options.input = Path(file);
    options.output = Path("again.safetensors");
    options.encoding = Of(Format::kMXFP8);
    EXPECT_THAT(Run(options), StatusIs(kInvalid, HasSubstr("want values that were never quantized")));
  }
  for (const Dtype dtype : {Dtype::kF8E5M2, Dtype::kF8E8M0, Dtype::kF4, Dtype::kF6E2M3, Dtype::kF6E3M2}) {
    WriteTensors("in.safetensors", {{"w", dtype, {2, 4}, std::vector<uint8_t>(safetensors::DtypeBits(dtype))}});
    EXPECT_THAT(RunFormat(Format::kMXFP8), StatusIs(kInvalid, HasSubstr("which is quantized already")));
  }
  WriteTensors("in.safetensors", {{"w", Dtype::kF8E4M3, {1, 2}, {1, 2}}});
  EXPECT_THAT(RunFormat(Format::kMXFP8), StatusIs(kInvalid, HasSubstr("got F8_E4M3, which is quantized already")));
  EXPECT_OK(RunRules("w: KEEP\n"));
}

TEST_F(ConversionTest, OnlyWhatAConversionHasWrittenIsDecoded) {
  const TestTensor data = {"w", Dtype::kF8E4M3, {2, 2}, {1, 2, 3, 4}};
  const TestTensor scales = {"w_scale", Dtype::kU8, {2, 1}, {127, 127}};
  const std::string good =
      R"({"w":{"format":"MXFP8","element":"E4M3","power_of_two_scales":true,"shape":[2,2],"has_columns":false}})";
  const auto dequantize = [&](const std::vector<TestTensor>& tensors, const std::string& encodings) {
    WriteTensors("in.safetensors", tensors, {{safetensors::kEncodingsKey, encodings}});
    return Dequantize(Format::kFP32, Path("in.safetensors"), Path("out.safetensors")).status();
  };
  EXPECT_OK(dequantize({data, scales}, good));
  EXPECT_THAT(dequantize({data}, good), StatusIs(kInvalid, HasSubstr("tensor w_scale: want U8 [2, 1] for MXFP8")));
  EXPECT_THAT(dequantize({{"w", Dtype::kU8, {2, 2}, {1, 2, 3, 4}}, scales}, good),
              StatusIs(kInvalid, HasSubstr("tensor w: want F8_E4M3 [2, 2]")));
  EXPECT_THAT(dequantize({data, {"w_scale", Dtype::kU8, {1, 2}, {0, 0}}}, good), StatusIs(kInvalid));
  for (const char* bad : {"", "[]", "{\"w\":1}", "{\"w\":{}}"}) {
    EXPECT_THAT(dequantize({data, scales}, bad), StatusIs(kInvalid)) << bad;
  }
  const std::pair<std::string, std::string> changes[] = {
      {"\"MXFP8\"", "\"FP7\""},
      {"\"MXFP8\"", "8"},
      {"\"E4M3\"", "\"E2M1\""},
      {"[2,2]", "[0,2]"},
      {"[2,2]", "[-1,2]"},
      {"[2,2]", "[18446744073709551615]"},
      {"[2,2]", "[2,\"2\"]"},
      {"[2,2]", "[2.0,2]"},
      {"[2,2]", "[4611686018427387904,2]"},
      {"\"MXFP8\"", "\"FP8_TENSOR_DELAYED\""},
      {"false", "0"},
  };
  for (const auto& [from, to] : changes) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    EXPECT_THAT(dequantize({data, scales}, text), StatusIs(kInvalid)) << text;
  }
  WriteTensors("in.safetensors", {data});
  EXPECT_THAT(Dequantize(Format::kFP32, Path("in.safetensors"), Path("out.safetensors")),
              StatusIs(kInvalid, AllOf(HasSubstr("tensor w"), HasSubstr("F8_E4M3"))));
  WriteTensors("in.safetensors", {FloatTensor("w", {1}, {1})});
  EXPECT_THAT(Dequantize(Format::kFP32, Path("in.safetensors"), Path("out.safetensors")),
              StatusIs(kInvalid, HasSubstr("nothing to decode")));
}

TEST_F(ConversionTest, WhatOtherProgramsHaveQuantizedIsDecoded) {
  const TestTensor data = {"w", Dtype::kF8E4M3, {2, 2}, {0x38, 0x40, 0x38, 0x40}};  // 1, 2
  WriteTensors("in.safetensors", {data, FloatTensor("w_scale", {2, 1}, {1, 3}), FloatTensor("b", {1}, {5})});
  ASSERT_OK_AND_ASSIGN(const ConversionReport report,
                       Dequantize(Format::kFP32, Path("in.safetensors"), Path("out.safetensors")));
  EXPECT_EQ(Bytes("out.safetensors", "w"), BytesOf<float>({1, 2, 3, 6}));
  EXPECT_THAT(Tensors("out.safetensors"), ElementsAre("b F32 [1]", "w F32 [2,2]"));
  EXPECT_EQ(report.tensors.front().source_bytes, 12);
}

TEST_F(ConversionTest, FnuzIsCarried) {
  WriteTensors("in.safetensors", {FloatTensor("v", {1, 2}, {1, 2}), {"w", Dtype::kF8E4M3FNUZ, {2}, {1, 2}}});
  ASSERT_OK(RunFormat(Format::kMXFP8));
  EXPECT_EQ(Bytes("out.safetensors", "w"), (std::vector<uint8_t>{1, 2}));
  ASSERT_OK(Dequantize(Format::kFP32, Path("out.safetensors"), Path("back.safetensors")));
  EXPECT_THAT(RunRules("w: MXFP8\n"), StatusIs(kInvalid, HasSubstr("F8_E4M3FNUZ")));
}

TEST_F(ConversionTest, OffsetsAreThoseOfTheTensorsThatAreThere) {
  WriteTensors("in.safetensors", {FloatTensor("w", {2, 2}, {1, 2, 3, 4}), FloatTensor("b", {1}, {5})},
               {{safetensors::kShardingInfoKey, R"({"w":{"saved_offsets":[0,0]},"b":{"saved_offsets":[0]}})"}});
  ASSERT_OK(RunFormat(Format::kMXFP8));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path("out.safetensors")));
  const safetensors::Header& header = checkpoint.files().front().header();
  ASSERT_OK_AND_ASSIGN(const auto offsets, safetensors::ParseShardingInfo(header));
  for (size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(offsets[i], std::vector<int64_t>(header.tensors[i].shape.size(), 0)) << header.tensors[i].name;
  }
  EXPECT_THAT(header.tensors, Contains(Field(&safetensors::TensorInfo::name, "w_scale")));
}

// A folder that transformers opens, with a matrix that its FP8 layers take, and others.
class ConversionWithConfigTest : public ConversionTest {
 protected:
  ConversionWithConfigTest() {
    std::filesystem::create_directory(Path("in"));
    std::vector<TestTensor> tensors;
    for (const auto& [name, rows] : {std::pair<const char*, int64_t>{"model.layers.0.mlp.up_proj.weight", 128},
                                     {"model.layers.0.mlp.down_proj.weight", 192},
                                     {"model.layers.0.mlp.experts.0.up_proj.weight", 128},
                                     {"model.layers.0.mlp.experts.1.up_proj.weight", 64},
                                     {"model.layers.0.mlp.gate.weight", 128},
                                     {"model.embed_tokens.weight", 128}}) {
      tensors.push_back(FloatTensor(name, {rows, 128}, RandomValues(rows * 128)));
    }
    tensors.push_back(FloatTensor("model.norm.weight", {128}, RandomValues(128)));
    WriteTensors("in/model.safetensors", tensors);
    WriteText("in/config.json", R"({"dtype": "float32"})");
  }
  absl::StatusOr<ConversionReport> RunFolder(Format format, const std::string& rules = "",
                                             ElementType element = ElementType::kE4M3) {
    ConversionOptions options;
    options.input = Path("in");
    options.output = Path("out");
    options.encoding = MakeEncoding(format, element, std::nullopt);
    if (!rules.empty()) options.rules_path = WriteText("rules", rules);
    return Run(options);
  }
  nlohmann::json QuantizationConfig() const {
    std::ifstream file(Path("out/config.json"));
    const nlohmann::json config = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    return config.value("quantization_config", nlohmann::json());
  }
};

TEST_F(ConversionWithConfigTest, BlocksOf128AreWrittenAsTransformersReadsThem) {
  ASSERT_OK_AND_ASSIGN(const ConversionReport report, RunFolder(Format::kFP8Block128x128));
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors.front().tensor.name, "model.layers.0.mlp.up_proj.weight");
  const nlohmann::json config = QuantizationConfig();
  EXPECT_EQ(config["quant_method"], "fp8");
  EXPECT_EQ(config["weight_block_size"], nlohmann::json({128, 128}));
  EXPECT_THAT(config["modules_to_not_convert"].get<std::vector<std::string>>(),
              UnorderedElementsAre("model.layers.0.mlp.down_proj", "model.layers.0.mlp.experts",
                                   "model.layers.0.mlp.gate", "model.embed_tokens"));
  EXPECT_OK(weights::Weights::Open(Path("out")));
}

TEST_F(ConversionWithConfigTest, WhereNothingIsQuantizedTheConfigSaysNothing) {
  ASSERT_OK_AND_ASSIGN(const ConversionReport report, RunFolder(Format::kFP8Block128x128, "*up_proj*: KEEP\n"));
  EXPECT_THAT(report.tensors, IsEmpty());
  EXPECT_TRUE(QuantizationConfig().is_null());
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("nothing is quantized")));
}

TEST_F(ConversionWithConfigTest, RulesMayNameOtherMatricesOfWholeBlocks) {
  ASSERT_OK_AND_ASSIGN(const ConversionReport report,
                       RunFolder(Format::kFP8Block128x128, "*gate*: FP8_BLOCK_128X128\n*up_proj*: KEEP\n"));
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors.front().tensor.name, "model.layers.0.mlp.gate.weight");
  EXPECT_THAT(RunFolder(Format::kFP8Block128x128, "*down_proj*: FP8_BLOCK_128X128\n"),
              StatusIs(kInvalid, HasSubstr("model.layers.0.mlp.down_proj.weight")));
}

TEST_F(ConversionWithConfigTest, TransformersRefusesWhatItDoesNotDecode) {
  // Without a method it opens nothing; of an unknown one it only warns.
  for (const Format format : {Format::kFP8TensorCurrent, Format::kMXFP8, Format::kMXFP8_2D, Format::kNVFP4_2D}) {
    ASSERT_OK(RunFolder(format, "", DefaultElement(format)));
    EXPECT_TRUE(QuantizationConfig().is_object()) << FormatName(format);
    EXPECT_FALSE(QuantizationConfig().contains("quant_method")) << FormatName(format);
    ASSERT_OK_AND_ASSIGN(const weights::Weights weights, weights::Weights::Open(Path("out")));
    EXPECT_TRUE(weights.Find("model.norm.weight")->is_number());
  }
  ASSERT_OK(RunFolder(Format::kFP8Block128x128, "", ElementType::kE5M2));
  EXPECT_FALSE(QuantizationConfig().contains("quant_method"));
  std::filesystem::remove_all(Path("out"));
  ASSERT_OK(RunFolder(Format::kBF16));
  EXPECT_TRUE(QuantizationConfig().is_null());
}

TEST_F(ConversionWithConfigTest, DecodedFoldersHaveNoQuantizationConfig) {
  ASSERT_OK(RunFolder(Format::kFP8Block128x128));
  std::filesystem::rename(Path("out"), Path("quantized"));
  ASSERT_OK(Dequantize(Format::kBF16, Path("quantized"), Path("out")));
  EXPECT_TRUE(std::filesystem::exists(Path("out/config.json")));
  EXPECT_TRUE(QuantizationConfig().is_null());
}

TEST_F(ConversionWithConfigTest, AConfigBesideTheOutputIsKeptInStep) {
  std::filesystem::remove(Path("in/config.json"));
  std::filesystem::create_directory(Path("out"));
  WriteText("out/config.json", R"({"hidden_size": 128})");
  ASSERT_OK(RunFolder(Format::kFP8Block128x128));
  EXPECT_EQ(QuantizationConfig()["quant_method"], "fp8");
  ASSERT_OK(RunFolder(Format::kBF16));
  EXPECT_TRUE(QuantizationConfig().is_null());
  // A file that transformers does not read says nothing of its folder.
  ASSERT_OK(RunFolder(Format::kFP8Block128x128));
  ConversionOptions options;
  options.input = Path("in");
  options.output = Path("out/other.safetensors");
  options.encoding = Of(Format::kMXFP8);
  ASSERT_OK(Run(options));
  EXPECT_EQ(QuantizationConfig()["quant_method"], "fp8");
}

TEST_F(ConversionTest, NamesThatPartsNeedAreFree) {
  WriteTensors("in.safetensors", {FloatTensor("w", {1, 1}, {1}), FloatTensor("w_scale", {1}, {1})});
  EXPECT_THAT(RunFormat(Format::kMXFP8), StatusIs(kInvalid, HasSubstr("tensor w_scale: duplicate name")));
  EXPECT_THAT(Names(), ElementsAre("in.safetensors"));
}

TEST_F(ConversionTest, AnInputIsNotOverwritten) {
  WriteTensors("in.safetensors", {FloatTensor("w", {1, 1}, {1})});
  std::filesystem::create_symlink(Path("in.safetensors"), Path("link.safetensors"));
  for (const std::string& output : {Path("in.safetensors"), folder_, Path("link.safetensors")}) {
    ConversionOptions options;
    options.output = output;
    options.encoding = Of(Format::kBF16);
    EXPECT_THAT(Run(options), StatusIs(kInvalid, HasSubstr("is the input")));
  }
}

TEST_F(ConversionTest, ProgressEndsWithAllBytes) {
  WriteTensors("in.safetensors", {FloatTensor("w", {2, 2}, {1, 2, 3, 4}), FloatTensor("v", {2}, {1, 2})});
  ConversionOptions options;
  options.input = Path("in.safetensors");
  options.output = Path("out.safetensors");
  options.encoding = Of(Format::kNVFP4_2D);
  int64_t done = 0, all = 0;
  ASSERT_OK(Convert(options, [&](int64_t done_bytes, int64_t all_bytes, absl::string_view) {
    EXPECT_GT(done_bytes, done);
    done = done_bytes;
    all = all_bytes;
  }));
  EXPECT_EQ(done, 24);
  EXPECT_EQ(all, 24);
}

TEST(EncodingErrorTest, CountsWhatEncodingDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Encoding encoding = Of(Format::kFP8TensorCurrent);
  const std::vector<float> source = {1, 0, 1e-9f, kInfinity, std::nanf(""), 1000, -2, 1.03f};
  std::vector<uint8_t> data(source.size());
  float scale_inv = 1;
  EncodePlanes(encoding, source.data(), 1, static_cast<int64_t>(source.size()),
               {data.data(), reinterpret_cast<uint8_t*>(&scale_inv)}, {}, {448, 1});
  std::vector<float> decoded(source.size());
  DecodePlane(encoding, Plane::kRowWise, {data.data(), reinterpret_cast<uint8_t*>(&scale_inv)}, 1,
              static_cast<int64_t>(source.size()), decoded.data());
  EncodingError error;
  error.Add(encoding, {1, static_cast<int64_t>(source.size())}, source.data(), decoded.data(), data.data());
  EXPECT_EQ(error.element_count(), 8);
  EXPECT_EQ(error.zero_share(), 2.0 / 8);
  EXPECT_EQ(error.non_finite_share(), 2.0 / 8);
  EXPECT_EQ(error.saturated_share(), 1.0 / 8);
  EXPECT_EQ(error.max_error(), 1000 - 448);
  EXPECT_NEAR(error.relative_rms(), 0.552, 1e-3);
}

}  // namespace
}  // namespace paramshard::ctl
