#include "kernels/formats/codec_cuda.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/golden_adam.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"
#include "tests/random_seed.h"
#include "tests/status_matchers.h"

namespace paramshard::gpu {
namespace {

class DecodePlaneTest : public GpuTest {
 protected:
  // Decodes on host and GPU, to both types, and compares bytes.
  void ExpectSame(const Encoding& encoding, Plane plane, const OwnedPlane& encoded, int64_t rows, int64_t cols,
                  int64_t offset) {
    const DeviceArray<uint8_t> data(encoded.data, offset);
    const DeviceArray<uint8_t> scales(encoded.scales, offset);
    const DeviceArray<uint8_t> amax(encoded.amax, offset);
    const DeviceArray<float> floats(std::vector<float>(rows * cols), 4 * offset);
    const DeviceArray<uint16_t> halves(std::vector<uint16_t>(rows * cols), 2 * offset);
    const ConstPlane view = {data.data(), scales.data(), amax.data()};
    ASSERT_OK(DecodePlane(encoding, plane, view, rows, cols, DecodedType::kFP32, floats.data(), stream()));
    ASSERT_OK(DecodePlane(encoding, plane, view, rows, cols, DecodedType::kBF16, halves.data(), stream()));
    Synchronize();
    const std::vector<float> expected = Decode(encoding, plane, encoded, rows, cols);
    std::vector<uint16_t> expected_halves;
    for (float value : expected) expected_halves.push_back(EncodeBFloat16(value));
    EXPECT_TRUE(SameBytes(AsBytes(expected), AsBytes(floats.Download())));
    EXPECT_TRUE(SameBytes(AsBytes(expected_halves), AsBytes(halves.Download())));
  }
};

TEST_F(DecodePlaneTest, EveryEncodingDecodesAsOnTheHost) {
  const uint64_t seed = FirstSeed(51);
  RandomFloats random(seed);
  for (const Encoding& encoding : AllEncodings()) {
    for (int64_t offset : {0, 0, 1, 3}) {
      const int64_t rows = random.Integer(0, 300);
      const int64_t cols = offset == 0 ? 4 * random.Integer(1, 100) : random.Integer(1, 400);
      SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed, " ", FormatName(encoding.format), " ", rows, " x ", cols));
      const OwnedPlanes planes = Encode(encoding, random.Mixed(rows * cols), rows, cols);
      ExpectSame(encoding, Plane::kRowWise, planes.row_wise, rows, cols, offset);
      if (HasColumnPlane(encoding.format)) {
        ExpectSame(encoding, Plane::kColumnWise, planes.column_wise, rows, cols, offset);
      }
    }
  }
}

TEST_F(DecodePlaneTest, AnyBytesDecodeAsOnTheHost) {
  RandomFloats random(52);
  constexpr int64_t kRows = 256;
  constexpr int64_t kCols = 256;
  for (const Encoding& encoding : AllEncodings()) {
    for (Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) continue;
      OwnedPlane encoded(encoding, plane, kRows, kCols);
      for (uint8_t& byte : encoded.data) byte = static_cast<uint8_t>(random.Integer(0, 255));
      for (uint8_t& byte : encoded.scales) byte = static_cast<uint8_t>(random.Integer(0, 255));
      for (uint8_t& byte : encoded.amax) byte = static_cast<uint8_t>(random.Integer(0, 255));
      SCOPED_TRACE(FormatName(encoding.format));
      ExpectSame(encoding, plane, encoded, kRows, kCols, 0);
    }
  }
}

TEST_F(DecodePlaneTest, GoldenPlanesAreDequantized) {
  for (const GoldenCase& golden : ComputableCases("quantize")) {
    SCOPED_TRACE(golden.name());
    const OwnedPlanes planes = Encode(golden.encoding(), golden.Values<float>("input"), golden.rows(), golden.cols());
    ExpectSame(golden.encoding(), Plane::kRowWise, planes.row_wise, golden.rows(), golden.cols(), 0);
    if (HasColumnPlane(golden.encoding().format)) {
      ExpectSame(golden.encoding(), Plane::kColumnWise, planes.column_wise, golden.rows(), golden.cols(), 0);
    }
  }
}

TEST_F(DecodePlaneTest, PlanesThatAFormatLacksAreRefused) {
  EXPECT_THAT(DecodePlane({Format::kBF16}, Plane::kColumnWise, {}, 1, 1, DecodedType::kFP32, nullptr, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("no column-wise plane")));
}

class TransposeBytesTest : public GpuTest {};

TEST_F(TransposeBytesTest, RowsBecomeColumns) {
  RandomFloats random(53);
  for (int64_t offset : {0, 1}) {
    for (int64_t rows : {0, 1, 3, 63, 64, 128, 260}) {
      for (int64_t cols : {1, 2, 64, 100, 257}) {
        std::vector<uint8_t> data(rows * cols);
        for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Integer(0, 255));
        std::vector<uint8_t> expected(rows * cols);
        for (int64_t i = 0; i < rows * cols; ++i) expected[i % cols * rows + i / cols] = data[i];
        const DeviceArray<uint8_t> source(data, offset);
        const DeviceArray<uint8_t> target(std::vector<uint8_t>(rows * cols), offset);
        ASSERT_OK(TransposeBytes(source.data(), rows, cols, target.data(), stream()));
        Synchronize();
        EXPECT_TRUE(SameBytes(expected, target.Download())) << rows << " x " << cols;
      }
    }
  }
}

}  // namespace
}  // namespace paramshard::gpu
