#include "kernels/formats/codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/effort.h"

namespace paramshard {
namespace {

std::string Describe(const Encoding& encoding, int64_t rows, int64_t cols) {
  return absl::StrCat(FormatName(encoding.format), " ", ElementTypeName(encoding.element), " pow2 ",
                      encoding.power_of_two_scales, " ", rows, " x ", cols);
}

uint8_t EncodeElement(ElementType element, float value) {
  if (element == ElementType::kE2M1) return E2M1::Encode(value);
  return element == ElementType::kE4M3 ? E4M3::Encode(value) : E5M2::Encode(value);
}

void StoreFloat(float value, int64_t index, std::vector<uint8_t>& bytes) {
  std::memcpy(bytes.data() + index * 4, &value, 4);
}

// The planes of a block format, written as plainly as the definition.
class SlowEncoder {
 public:
  SlowEncoder(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols,
              const TensorScaling& scaling)
      : encoding_(encoding), matrix_(matrix), rows_(rows), cols_(cols), scaling_(scaling) {}

  OwnedPlane Encode(Plane plane, int64_t block_rows, int64_t block_cols) const {
    OwnedPlane out(encoding_, plane, rows_, cols_);
    std::fill(out.data.begin(), out.data.end(), 0);
    if (!out.amax.empty()) StoreFloat(scaling_.amax, 0, out.amax);
    int64_t scale_index = 0;
    for (int64_t row = 0; row < rows_; row += block_rows) {
      for (int64_t col = 0; col < cols_; col += block_cols) {
        const int64_t last_row = std::min(rows_, row + block_rows);
        const int64_t last_col = std::min(cols_, col + block_cols);
        const float scale = StoreScale(Amax(row, last_row, col, last_col), scale_index++, out);
        Store(row, last_row, col, last_col, scale, out);
      }
    }
    return out;
  }

 private:
  float Amax(int64_t row, int64_t last_row, int64_t first_col, int64_t last_col) const {
    float amax = 0;
    for (; row < last_row; ++row) {
      for (int64_t col = first_col; col < last_col; ++col) {
        const float magnitude = std::fabs(matrix_[row * cols_ + col]);
        if (magnitude > amax) amax = magnitude;
      }
    }
    return amax;
  }

  void Store(int64_t row, int64_t last_row, int64_t first_col, int64_t last_col, float scale, OwnedPlane& out) const {
    for (; row < last_row; ++row) {
      for (int64_t col = first_col; col < last_col; ++col) {
        const uint8_t code = EncodeElement(encoding_.element, matrix_[row * cols_ + col] * scale);
        if (encoding_.format == Format::kNVFP4_2D) {
          out.data[row * ((cols_ + 1) / 2) + col / 2] |= static_cast<uint8_t>(col % 2 == 0 ? code : code << 4);
        } else {
          out.data[row * cols_ + col] = code;
        }
      }
    }
  }

  // Stores the block's scale and returns the factor of its elements.
  float StoreScale(float amax, int64_t index, OwnedPlane& out) const {
    const float fp8_max = encoding_.element == ElementType::kE4M3 ? 448.0f : 57344.0f;
    if (encoding_.format == Format::kMXFP8 || encoding_.format == Format::kMXFP8_2D) {
      out.scales[index] = ComputeE8M0Scale(amax, fp8_max);
      return E8M0EncodeMultiplier(out.scales[index]);
    }
    if (encoding_.format == Format::kNVFP4_2D) {
      const float tensor_scale = ComputeNvfp4TensorScale(scaling_.amax);
      out.scales[index] = ComputeNvfp4BlockScale(amax, tensor_scale);
      return Nvfp4EncodeMultiplier(out.scales[index], tensor_scale);
    }
    const float scale = encoding_.format == Format::kFP8TensorDelayed
                            ? scaling_.scale
                            : ComputeScale(amax, fp8_max, encoding_.power_of_two_scales);
    StoreFloat(1.0f / scale, index, out.scales);
    return scale;
  }

  const Encoding encoding_;
  const std::vector<float>& matrix_;
  const int64_t rows_;
  const int64_t cols_;
  const TensorScaling scaling_;
};

OwnedPlane SlowUnscaled(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  OwnedPlane plane(encoding, Plane::kRowWise, rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float value = std::isnan(matrix[i]) ? FloatFromBits(0x7fc00000u) : matrix[i];
    const uint16_t code = encoding.format == Format::kBF16 ? EncodeBFloat16(value) : EncodeFloat16(value);
    if (encoding.format == Format::kFP32) {
      StoreFloat(value, i, plane.data);
    } else {
      std::memcpy(plane.data.data() + 2 * i, &code, 2);
    }
  }
  return plane;
}

OwnedPlanes SlowEncode(const Encoding& encoding, const std::vector<float>& matrix, int64_t rows, int64_t cols,
                       const TensorScaling& scaling) {
  const SlowEncoder encoder(encoding, matrix, rows, cols, scaling);
  OwnedPlanes planes(encoding, rows, cols);
  switch (encoding.format) {
    case Format::kMXFP8:
      planes.row_wise = encoder.Encode(Plane::kRowWise, 1, 32);
      planes.column_wise = encoder.Encode(Plane::kColumnWise, 32, 1);
      break;
    case Format::kMXFP8_2D:
      planes.row_wise = encoder.Encode(Plane::kRowWise, 32, 32);
      break;
    case Format::kNVFP4_2D:
      planes.row_wise = encoder.Encode(Plane::kRowWise, 16, 16);
      break;
    case Format::kFP8Block128x128:
      planes.row_wise = encoder.Encode(Plane::kRowWise, 128, 128);
      break;
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      planes.row_wise = encoder.Encode(Plane::kRowWise, rows, cols);
      break;
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
      planes.row_wise = SlowUnscaled(encoding, matrix, rows, cols);
  }
  return planes;
}

constexpr MatrixShape kShapes[] = {{1, 1},   {1, 31},  {1, 32},    {1, 33},    {31, 1},    {33, 1},    {32, 32},
                                   {33, 65}, {64, 96}, {7, 300},   {40, 257},  {128, 128}, {129, 127}, {130, 5},
                                   {2, 515}, {65, 40}, {135, 140}, {17, 1041}, {3, 4100}};

TEST(CodecTest, AnyShapeIsEncodedAsTheSlowReference) {
  RandomFloats random(1);
  for (const Encoding& encoding : AllEncodings()) {
    for (const auto& [rows, cols] : kShapes) {
      SCOPED_TRACE(Describe(encoding, rows, cols));
      for (const std::vector<float>& matrix : {random.Mixed(rows * cols), random.AnyBits(rows * cols)}) {
        const TensorScaling scaling = ScalingOf(matrix, 5.7f);
        EXPECT_TRUE(Encode(encoding, matrix, rows, cols, scaling) == SlowEncode(encoding, matrix, rows, cols, scaling));
      }
    }
  }
}

// Encodes rows [first, last) by themselves into the places that they have in the planes of the whole.
void EncodeExtent(const Encoding& encoding, const std::vector<float>& matrix, int64_t first, int64_t last, int64_t cols,
                  OwnedPlanes& whole) {
  // Every extent stores the scale of the whole tensor.
  const bool of_extent = GranuleRows(encoding.format) > 1;
  const auto at = [&](OwnedPlane& plane, Plane which) -> MutablePlane {
    if (plane.data.empty()) return {};
    return {plane.data.data() + DataBytes(encoding, first, cols),
            plane.scales.data() + (of_extent ? ScaleBytes(encoding, which, first, cols) : 0), plane.amax.data()};
  };
  EncodePlanes(encoding, matrix.data() + first * cols, last - first, cols, at(whole.row_wise, Plane::kRowWise),
               at(whole.column_wise, Plane::kColumnWise), ScalingOf(matrix));
}

TEST(CodecTest, ExtentsCutAtGranulesGiveTheWholesBytes) {
  constexpr uint64_t kSeed = 2;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  RandomFloats random(kSeed);
  for (const Encoding& encoding : AllEncodings()) {
    for (int round = 0; round < Rounds(20); ++round) {
      const int64_t rows = random.Integer(1, 400);
      const int64_t cols = random.Integer(1, 300);
      const int64_t granule = GranuleRows(encoding.format);
      const int64_t extent = granule * random.Integer(1, 3);
      SCOPED_TRACE(absl::StrCat(Describe(encoding, rows, cols), " cut every ", extent));
      const std::vector<float> matrix = random.Mixed(rows * cols);
      OwnedPlanes sharded(encoding, rows, cols);
      for (int64_t first = 0; first < rows; first += extent) {
        EncodeExtent(encoding, matrix, first, std::min(rows, first + extent), cols, sharded);
      }
      ASSERT_TRUE(sharded == Encode(encoding, matrix, rows, cols));
    }
  }
}

TEST(CodecTest, EmptyMatrixWritesNothing) {
  for (const Encoding& encoding : AllEncodings()) {
    EncodePlanes(encoding, nullptr, 0, 64, {}, {});
    DecodePlane(encoding, Plane::kRowWise, {}, 0, 64, nullptr);
  }
}

TEST(CodecTest, EmptyExtentHasWhatIsOfTheWholeTensor) {
  float scale_inv = 0;
  EncodePlanes({Format::kFP8TensorDelayed}, nullptr, 0, 64, {nullptr, reinterpret_cast<uint8_t*>(&scale_inv)}, {},
               {.scale = 8.0f});
  EXPECT_EQ(scale_inv, 0.125f);
  EncodePlanes({Format::kFP8TensorCurrent, ElementType::kE4M3, false}, nullptr, 0, 64,
               {nullptr, reinterpret_cast<uint8_t*>(&scale_inv)}, {}, {.amax = 224.0f});
  EXPECT_EQ(scale_inv, 0.5f);
  float amax = 0;
  EncodePlanes({Format::kNVFP4_2D, ElementType::kE2M1}, nullptr, 0, 64,
               {nullptr, nullptr, reinterpret_cast<uint8_t*>(&amax)}, {}, {.amax = 3.0f});
  EXPECT_EQ(amax, 3.0f);
}

TEST(CodecTest, AmaxIgnoresNanAndKeepsInfinity) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto amax = [](const std::vector<float>& values) {
    return Amax(values.data(), static_cast<int64_t>(values.size()));
  };
  EXPECT_EQ(amax({}), 0.0f);
  EXPECT_EQ(amax({kNan, -kNan}), 0.0f);
  EXPECT_EQ(amax({1.0f, kNan, -2.5f, 0x1p-149f}), 2.5f);
  EXPECT_EQ(amax({1.0f, -kInfinity, kNan}), kInfinity);
}

TEST(CodecTest, OddRowsOfNvfp4EndWithAZeroNibble) {
  const std::vector<float> matrix = {6.0f, -6.0f, 6.0f, 3.0f, 1.0f, -0.0f};
  const OwnedPlanes planes = Encode({Format::kNVFP4_2D, ElementType::kE2M1}, matrix, 2, 3);
  EXPECT_EQ(planes.row_wise.data, (std::vector<uint8_t>{0xf7, 0x07, 0x25, 0x08}));
}

TEST(CodecTest, PlaneWithoutDataIsLeftOut) {
  RandomFloats random(3);
  const std::vector<float> matrix = random.Mixed(40 * 70);
  for (const Encoding& encoding : AllEncodings()) {
    SCOPED_TRACE(Describe(encoding, 40, 70));
    const OwnedPlanes both = Encode(encoding, matrix, 40, 70);
    OwnedPlanes planes(encoding, 40, 70);
    EncodePlanes(encoding, matrix.data(), 40, 70, {}, planes.column_wise.View(), ScalingOf(matrix));
    EXPECT_TRUE(planes.row_wise == OwnedPlane(encoding, Plane::kRowWise, 40, 70));
    EXPECT_TRUE(planes.column_wise == both.column_wise);
    EncodePlanes(encoding, matrix.data(), 40, 70, planes.row_wise.View(), {}, ScalingOf(matrix));
    EXPECT_TRUE(planes == both);
  }
}

// A copy of a plane that begins one byte past an aligned address.
struct MisalignedPlane {
  explicit MisalignedPlane(const OwnedPlane& plane) : data(plane.data), scales(plane.scales), amax(plane.amax) {
    for (std::vector<uint8_t>* bytes : {&data, &scales, &amax}) bytes->insert(bytes->begin(), 0);
  }
  MutablePlane View() { return {data.data() + 1, scales.data() + 1, amax.data() + 1}; }
  ConstPlane ConstView() const { return {data.data() + 1, scales.data() + 1, amax.data() + 1}; }
  OwnedPlane Aligned() const {
    OwnedPlane plane;
    plane.data.assign(data.begin() + 1, data.end());
    plane.scales.assign(scales.begin() + 1, scales.end());
    plane.amax.assign(amax.begin() + 1, amax.end());
    return plane;
  }

  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> amax;
};

TEST(CodecTest, UnalignedPlanesHoldTheSameBytes) {
  constexpr int64_t kRows = 133;
  constexpr int64_t kCols = 261;
  RandomFloats random(4);
  const std::vector<float> matrix = random.Mixed(kRows * kCols);
  for (const Encoding& encoding : AllEncodings()) {
    SCOPED_TRACE(Describe(encoding, kRows, kCols));
    const OwnedPlanes aligned = Encode(encoding, matrix, kRows, kCols);
    const OwnedPlanes empty(encoding, kRows, kCols);
    MisalignedPlane row_wise(empty.row_wise);
    MisalignedPlane column_wise(empty.column_wise);
    const bool both = HasColumnPlane(encoding.format);
    EncodePlanes(encoding, matrix.data(), kRows, kCols, row_wise.View(), both ? column_wise.View() : MutablePlane{},
                 ScalingOf(matrix));
    EXPECT_TRUE(row_wise.Aligned() == aligned.row_wise);
    EXPECT_TRUE(column_wise.Aligned() == aligned.column_wise);

    std::vector<float> decoded(kRows * kCols);
    DecodePlane(encoding, Plane::kRowWise, row_wise.ConstView(), kRows, kCols, decoded.data());
    const std::vector<float> expected = Decode(encoding, Plane::kRowWise, aligned.row_wise, kRows, kCols);
    EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), decoded.size() * 4), 0);
  }
}

TEST(CodecTest, DecodedValuesAreNearTheOriginals) {
  RandomFloats random(5);
  const std::vector<float> matrix = random.Normal(70 * 90, 0.02f);
  const float amax = std::fabs(
      *std::max_element(matrix.begin(), matrix.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  for (const Encoding& encoding : AllEncodings()) {
    SCOPED_TRACE(Describe(encoding, 70, 90));
    const OwnedPlanes planes = Encode(encoding, matrix, 70, 90);
    const std::vector<float> decoded = Decode(encoding, Plane::kRowWise, planes.row_wise, 70, 90);
    // Half of the widest step between values: from 4 to 6 of 6 in E2M1, from 3.5 to 4 of 4 in E5M2.
    const float tolerance = encoding.element == ElementType::kE2M1 ? amax / 5 : amax / 8;
    for (size_t i = 0; i < matrix.size(); ++i) ASSERT_NEAR(decoded[i], matrix[i], tolerance);
  }
}

TEST(CodecTest, NanIsDecodedAsOneNan) {
  std::vector<float> matrix(64, 1.0f);
  matrix[3] = FloatFromBits(0xffc12345u);
  for (const Encoding& encoding : AllEncodings()) {
    const OwnedPlanes planes = Encode(encoding, matrix, 2, 32);
    const std::vector<float> decoded = Decode(encoding, Plane::kRowWise, planes.row_wise, 2, 32);
    // E2M1 has no NaN.
    const uint32_t expected = encoding.element == ElementType::kE2M1 ? FloatBits(1.0f) : 0x7fc00000u;
    EXPECT_EQ(FloatBits(decoded[3]), expected) << Describe(encoding, 2, 32);
  }
}

TEST(CodecDeathTest, UncheckedEncodingIsOurBug) {
  float value = 0;
  EXPECT_DEATH(EncodePlanes({Format::kMXFP8, ElementType::kE2M1}, &value, 1, 1, {}, {}), "check failed");
  EXPECT_DEATH(DecodePlane({Format::kBF16}, Plane::kColumnWise, {}, 1, 1, &value), "check failed");
}

}  // namespace
}  // namespace paramshard
