#include "common/weights/weights.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/safetensors/conversion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/format.h"
#include "tests/common/safetensors_files.h"
#include "tests/support/status_matchers.h"

namespace paramshard::weights {
namespace {

using safetensors::BytesOf;
using safetensors::Dtype;
using safetensors::FloatTensor;
using safetensors::TestTensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class WeightsTest : public safetensors::FolderTest {
 protected:
  // Writes every code of a type, repeated to fill a shape.
  static TestTensor Codes(const std::string& name, Dtype dtype, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<uint8_t> codes(count);
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(i * 7 % 251 & 0x77);  // no NaN
    return {name, dtype, std::move(shape), std::move(codes)};
  }

  static std::vector<float> CountedScales(int64_t count) {
    std::vector<float> scales(count);
    for (int64_t i = 0; i < count; ++i) scales[i] = 0.25f * static_cast<float>(i + 1);
    return scales;
  }

  absl::StatusOr<Weights> Open(const std::vector<TestTensor>& tensors, const std::string& config = "",
                               const safetensors::Metadata& metadata = {}) const {
    WriteTensors("model.safetensors", tensors, metadata);
    if (!config.empty()) WriteText("config.json", config);
    return Weights::Open(folder_);
  }

  static absl::StatusOr<std::vector<float>> Read(const Weights& weights, const std::string& name) {
    const Weights::Tensor* const tensor = weights.Find(name);
    if (tensor == nullptr) return absl::NotFoundError(name);
    const MatrixShape matrix = tensor->matrix();
    std::vector<float> values(matrix.rows * matrix.cols);
    const absl::Status status = weights.ReadRows(*tensor, {0, matrix.rows}, values.data());
    if (!status.ok()) return status;
    return values;
  }

  // Reading any rows gives those rows of the whole.
  static void ExpectRowsAlike(const Weights& weights, const std::string& name) {
    const Weights::Tensor& tensor = *weights.Find(name);
    const MatrixShape matrix = tensor.matrix();
    ASSERT_OK_AND_ASSIGN(const std::vector<float> whole, Read(weights, name));
    for (const int64_t begin : {int64_t{0}, int64_t{1}, matrix.rows / 2, matrix.rows - 1}) {
      for (const int64_t end : {begin + 1, matrix.rows}) {
        std::vector<float> rows((end - begin) * matrix.cols);
        ASSERT_OK(weights.ReadRows(tensor, {begin, end}, rows.data()));
        ASSERT_TRUE(std::equal(rows.begin(), rows.end(), whole.begin() + begin * matrix.cols)) << begin << " " << end;
      }
    }
  }

  void ExpectRefused(const std::vector<TestTensor>& tensors, const std::string& name, const std::string& dtype,
                     const std::string& config = "") const {
    ASSERT_OK_AND_ASSIGN(const Weights weights, Open(tensors, config));
    EXPECT_THAT(Read(weights, name), StatusIs(kInvalid, AllOf(HasSubstr(name), HasSubstr(dtype)))) << config;
    EXPECT_FALSE(weights.Find(name)->is_number());
    std::filesystem::remove(Path("config.json"));
  }
};

TEST_F(WeightsTest, PlainNumbersAreReadAndOthersCarried) {
  ASSERT_OK_AND_ASSIGN(const Weights weights, Open({FloatTensor("a", {2, 2}, {1, 2, 3, 4}),
                                                    {"b", Dtype::kBF16, {2}, BytesOf<uint16_t>({0x3f80, 0x4000})},
                                                    FloatTensor("scalar", {}, {5}),
                                                    {"n", Dtype::kI64, {1}, BytesOf<int64_t>({7})},
                                                    {"carried", Dtype::kF8E4M3FNUZ, {2}, {1, 2}}}));
  EXPECT_THAT(*Read(weights, "a"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(*Read(weights, "b"), ElementsAre(1, 2));
  EXPECT_THAT(*Read(weights, "scalar"), ElementsAre(5));
  EXPECT_EQ(weights.Find("n")->kind, Weights::Kind::kCarried);
  EXPECT_THAT(Read(weights, "n"), StatusIs(kInvalid, AllOf(HasSubstr("tensor n"), HasSubstr("I64"))));
  EXPECT_THAT(Read(weights, "carried"), StatusIs(kInvalid, HasSubstr("F8_E4M3FNUZ")));
}

TEST_F(WeightsTest, BlocksOf128AreDecodedByTheirScales) {
  const TestTensor codes = Codes("a.weight", Dtype::kF8E4M3, {300, 130});
  ASSERT_OK_AND_ASSIGN(const Weights weights,
                       Open({codes, FloatTensor("a.weight_scale_inv", {3, 2}, CountedScales(6))}));
  EXPECT_THAT(weights.tensors(), ElementsAre(Key("a.weight")));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "a.weight"));
  for (int64_t row = 0; row < 300; ++row) {
    for (int64_t col = 0; col < 130; ++col) {
      const float scale = 0.25f * static_cast<float>(row / 128 * 2 + col / 128 + 1);
      ASSERT_EQ(values[row * 130 + col], E4M3::Decode(codes.bytes[row * 130 + col]) * scale) << row << " " << col;
    }
  }
  ExpectRowsAlike(weights, "a.weight");
}

TEST_F(WeightsTest, ConfigSaysTheSizeOfBlocks) {
  const TestTensor codes = Codes("a.weight", Dtype::kF8E5M2, {64, 64});
  ASSERT_OK_AND_ASSIGN(const Weights weights,
                       Open({codes, FloatTensor("a.weight_scale_inv", {2, 1}, {2, 4})},
                            R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 64]}})"));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "a.weight"));
  EXPECT_EQ(values[31 * 64], E5M2::Decode(codes.bytes[31 * 64]) * 2);
  EXPECT_EQ(values[32 * 64], E5M2::Decode(codes.bytes[32 * 64]) * 4);
}

TEST_F(WeightsTest, AScaleMayServeTheTensorOrARow) {
  const TestTensor codes = Codes("a.weight", Dtype::kF8E4M3, {3, 2});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}}) {
    ASSERT_OK_AND_ASSIGN(const Weights weights, Open({codes, FloatTensor("a.weight_scale", shape, {0.5}),
                                                      FloatTensor("a.input_scale", {1}, {3})}));
    EXPECT_THAT(weights.tensors(), ElementsAre(Key("a.weight")));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "a.weight"));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], E4M3::Decode(codes.bytes[i]) * 0.5f);
  }
  ASSERT_OK_AND_ASSIGN(
      const Weights weights,
      Open({codes, {"a.weight_scale", Dtype::kBF16, {3, 1}, BytesOf<uint16_t>({0x3f80, 0x4000, 0x4080})}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "a.weight"));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], E4M3::Decode(codes.bytes[i]) * std::exp2(static_cast<float>(i / 2)));
  ExpectRowsAlike(weights, "a.weight");
}

TEST_F(WeightsTest, EachMatrixOfAStackHasItsOwnGridOfScales) {
  const TestTensor codes = Codes("experts", Dtype::kF8E4M3, {2, 130, 3});
  ASSERT_OK_AND_ASSIGN(const Weights weights,
                       Open({codes, FloatTensor("experts_scale_inv", {2, 2, 1}, CountedScales(4))}));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "experts"));
  for (int64_t row = 0; row < 260; ++row) {
    const float scale = 0.25f * static_cast<float>(row / 130 * 2 + row % 130 / 128 + 1);
    ASSERT_EQ(values[row * 3], E4M3::Decode(codes.bytes[row * 3]) * scale) << row;
  }
  ExpectRowsAlike(weights, "experts");
  // Blocks of [2 * 130, 3] rows would span two of its matrices.
  ExpectRefused({codes, FloatTensor("experts_scale_inv", {3, 1}, CountedScales(3))}, "experts", "F8_E4M3");
}

TEST_F(WeightsTest, Mxfp4OfGptOssIsDecodedAndTransposed) {
  const TestTensor blocks = Codes("mlp.gate_up_proj_blocks", Dtype::kU8, {2, 3, 2, 16});
  std::vector<uint8_t> exponents;
  for (int i = 0; i < 12; ++i) exponents.push_back(static_cast<uint8_t>(120 + i));
  ASSERT_OK_AND_ASSIGN(const Weights weights,
                       Open({blocks, {"mlp.gate_up_proj_scales", Dtype::kU8, {2, 3, 2}, exponents}}));
  EXPECT_THAT(weights.tensors(), ElementsAre(Key("mlp.gate_up_proj")));
  EXPECT_THAT(weights.Find("mlp.gate_up_proj")->shape, ElementsAre(2, 64, 3));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "mlp.gate_up_proj"));
  for (int64_t expert = 0; expert < 2; ++expert) {
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t k = 0; k < 64; ++k) {
        const int64_t block = (expert * 3 + row) * 2 + k / 32;
        const int code = blocks.bytes[block * 16 + k % 32 / 2] >> (k % 2 * 4) & 0xf;
        const float value = std::ldexp(E2M1::Decode(static_cast<uint8_t>(code)), exponents[block] - 127);
        ASSERT_EQ(values[(expert * 64 + k) * 3 + row], value);
      }
    }
  }
  ExpectRowsAlike(weights, "mlp.gate_up_proj");
}

TEST_F(WeightsTest, OwnFormatsAreDecodedByTheirMetadata) {
  const int64_t rows = 70;
  const int64_t cols = 48;
  std::vector<float> source(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) source[i] = static_cast<float>(i % 97 - 48) / 32;
  for (const FormatTraits& traits : kFormats) {
    if (traits.format == Format::kFP8TensorDelayed) continue;
    const QuantizedTensor tensor{"w", {2, rows / 2, cols}, {traits.format, DefaultElement(traits.format), true}, false};
    std::vector<TestTensor> files;
    std::map<Part, uint8_t*> places;
    for (const PartTensor& part : PartTensors(tensor)) {
      const int64_t size = BandBytes(tensor, part.part, {0, rows}).size;
      files.push_back({part.tensor.name, part.tensor.dtype, part.tensor.shape, std::vector<uint8_t>(size)});
    }
    for (size_t i = 0; i < files.size(); ++i) places[PartTensors(tensor)[i].part] = files[i].bytes.data();
    EncodePlanes(tensor.encoding, source.data(), rows, cols,
                 {places[Part::kData], places[Part::kScales], places[Part::kAmax]}, {},
                 {.amax = Amax(source.data(), rows * cols)});
    std::vector<float> want(rows * cols);
    DecodePlane(tensor.encoding, Plane::kRowWise, {places[Part::kData], places[Part::kScales], places[Part::kAmax]},
                rows, cols, want.data());
    safetensors::Metadata metadata;
    if (!IsPlain(traits.format)) metadata[safetensors::kEncodingsKey] = SerializeEncodings({tensor});
    ASSERT_OK_AND_ASSIGN(const Weights weights, Open(files, "", metadata));
    EXPECT_THAT(weights.tensors(), ElementsAre(Key("w"))) << traits.name;
    ASSERT_OK_AND_ASSIGN(const std::vector<float> values, Read(weights, "w"));
    EXPECT_EQ(values, want) << traits.name;
    ExpectRowsAlike(weights, "w");
  }
}

TEST_F(WeightsTest, MetadataThatDoNotFitTheTensorsAreRefused) {
  const QuantizedTensor tensor{"w", {2, 2}, {Format::kFP8TensorCurrent, ElementType::kE4M3, false}, false};
  const safetensors::Metadata metadata = {{safetensors::kEncodingsKey, SerializeEncodings({tensor})}};
  EXPECT_THAT(Open({Codes("w", Dtype::kF8E4M3, {2, 2})}, "", metadata), StatusIs(kInvalid, HasSubstr("w_scale")));
  EXPECT_THAT(Open({Codes("w", Dtype::kF8E4M3, {4}), FloatTensor("w_scale", {1}, {1})}, "", metadata),
              StatusIs(kInvalid, HasSubstr("tensor w")));
}

TEST_F(WeightsTest, CodesThatAreNotUnderstoodAreRefused) {
  const TestTensor e4m3 = Codes("a.weight", Dtype::kF8E4M3, {4, 4});
  const TestTensor scale = FloatTensor("a.weight_scale", {1}, {1});
  ExpectRefused({e4m3}, "a.weight", "F8_E4M3");
  ExpectRefused({e4m3, FloatTensor("a.scale_weight", {1}, {1})}, "a.weight", "F8_E4M3");
  ExpectRefused({e4m3, FloatTensor("a.weight_scale", {4}, {1, 2, 3, 4})}, "a.weight", "F8_E4M3");
  ExpectRefused({e4m3, {"a.weight_scale", Dtype::kU8, {1}, {127}}}, "a.weight", "U8");
  ExpectRefused({e4m3, scale, FloatTensor("a.weight_zero_point", {1}, {0})}, "a.weight", "F8_E4M3");
  ExpectRefused({e4m3, scale, FloatTensor("a.weight_scale_2", {1}, {1})}, "a.weight", "F8_E4M3");
  for (const Dtype dtype : {Dtype::kI8, Dtype::kU8, Dtype::kF8E8M0, Dtype::kF8E4M3FNUZ, Dtype::kF8E5M2FNUZ}) {
    const std::string name(safetensors::DtypeName(dtype));
    ExpectRefused({Codes("a.weight", dtype, {4, 4}), scale}, "a.weight", name);
    ExpectRefused({Codes("a.weight", dtype, {4, 4})}, "a.weight", name);
  }
  ExpectRefused({{"a.weight", Dtype::kF4, {4, 8}, std::vector<uint8_t>(16)}, scale}, "a.weight", "F4");
  ExpectRefused({{"a.weight_packed", Dtype::kI32, {1, 1}, {1, 2, 3, 4}}, scale}, "a.weight", "I32");
  ExpectRefused({{"a.qweight", Dtype::kI32, {1, 1}, {1, 2, 3, 4}}}, "a.weight", "I32");
  ExpectRefused({{"a_blocks", Dtype::kU8, {2, 16}, std::vector<uint8_t>(32)}, {"a_scales", Dtype::kU8, {2}, {1, 2}}},
                "a", "U8");
  // The numbers may or may not have been multiplied by the scales: the file does not say.
  ExpectRefused({FloatTensor("a.weight", {1}, {1}), FloatTensor("a.weight_scale_inv", {1}, {1})}, "a.weight", "F32");
}

TEST_F(WeightsTest, MethodsThatAreNotKnownAreRefused) {
  const std::vector<TestTensor> plain = {FloatTensor("a.weight", {1}, {1})};
  for (const std::string config : {
           R"({"quant_method": "awq"})",
           R"({"bits": 4})",
           R"("fp8")",
           R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}})",
           R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}})",
       }) {
    ExpectRefused(plain, "a.weight", "F32", absl::StrCat(R"({"quantization_config": )", config, "}"));
    ExpectRefused(plain, "a.weight", "F32", absl::StrCat(R"({"text_config": {"quantization_config": )", config, "}}"));
  }
  ExpectRefused({FloatTensor("a.weight", {1}, {1}), FloatTensor("a.weight_scale", {1}, {1})}, "a.weight", "F32",
                R"({"quantization_config": {"quant_method": "compressed-tensors"}})");
  WriteText("hf_quant_config.json", "{}");
  ExpectRefused(plain, "a.weight", "F32");
  WriteText("config.json", "[]");
  EXPECT_THAT(Weights::Open(folder_), StatusIs(kInvalid, HasSubstr("config.json")));
}

TEST_F(WeightsTest, NamesThatDifferByWrappersAreSimilar) {
  ASSERT_OK_AND_ASSIGN(const Weights weights, Open({FloatTensor("module._orig_mod.a.weight", {1}, {1}),
                                                    FloatTensor("model.b.weight", {1}, {1})}));
  EXPECT_EQ(weights.SimilarName("a.weight"), "module._orig_mod.a.weight");
  EXPECT_EQ(weights.SimilarName("b.weight"), "model.b.weight");
  EXPECT_EQ(weights.SimilarName("lm.model.b.weight"), "model.b.weight");
  EXPECT_THAT(weights.SimilarName("c.weight"), IsEmpty());
}

}  // namespace
}  // namespace paramshard::weights
