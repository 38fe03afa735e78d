#include "kernels/formats/codec_cuda.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "tests/kernels/golden_step.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/planes.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class DecodePlaneTest : public GpuTest {
 protected:
  // Decodes on host and GPU, to both types, and compares bytes. `offset` (bytes) and `out_offset` (elements) are the
  // distances of plane and output from aligned addresses.
  void ExpectSame(const Encoding& encoding, Plane plane, const OwnedPlane& encoded, int64_t rows, int64_t cols,
                  int64_t offset = 0, int64_t out_offset = 0) {
    const DeviceArray<uint8_t> data(encoded.data, offset);
    const DeviceArray<uint8_t> scales(encoded.scales, offset);
    const DeviceArray<uint8_t> amax(encoded.amax, offset);
    const DeviceArray<float> floats(std::vector<float>(rows * cols, -1.0f), 4 * out_offset);
    const DeviceArray<uint16_t> halves(std::vector<uint16_t>(rows * cols, 0xcdcd), 2 * out_offset);
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

  // Any bytes in any plane of the encoding.
  void ExpectAnySame(const Encoding& encoding, int64_t rows, int64_t cols, int64_t offset, int64_t out_offset) {
    for (Plane plane : {Plane::kRowWise, Plane::kColumnWise}) {
      if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) continue;
      OwnedPlane encoded(encoding, plane, rows, cols);
      for (std::vector<uint8_t>* bytes : {&encoded.data, &encoded.scales, &encoded.amax}) {
        for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random_.Integer(0, 255));
      }
      SCOPED_TRACE(absl::StrCat(FormatName(encoding.format), " of ", ElementTypeName(encoding.element), " plane ",
                                static_cast<int>(plane), " ", rows, " x ", cols, " at ", offset, ", ", out_offset));
      ExpectSame(encoding, plane, encoded, rows, cols, offset, out_offset);
    }
  }

 private:
  RandomFloats random_{52};
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
  for (const Encoding& encoding : AllEncodings()) ExpectAnySame(encoding, 256, 256, 0, 0);
}

// Around the sizes that a group of elements, a block of scales, a warp and a block of threads have, where rows begin at
// every place among the bytes that are read and written at once.
TEST_F(DecodePlaneTest, EverySizeAndAlignmentDecodesAsOnTheHost) {
  for (const Encoding& encoding : AllEncodings()) {
    for (int64_t cols : {1,   2,   3,   4,   7,   8,   9,   15,   16,   17,   31,   32,   33,  64,
                         127, 128, 129, 136, 255, 256, 257, 1021, 2047, 2048, 2049, 2056, 4100}) {
      const int64_t rows = cols < 300 ? 139 : 35;
      ExpectAnySame(encoding, rows, cols, 0, 0);
      ExpectAnySame(encoding, rows, cols, cols % 16, 0);
      ExpectAnySame(encoding, rows, cols, 0, 1 + cols % 7);
      ExpectAnySame(encoding, 1, cols, cols % 5, cols % 3);
    }
  }
}

TEST_F(DecodePlaneTest, EveryPairOfAlignmentsDecodesAsOnTheHost) {
  for (const Encoding& encoding : AllEncodings()) {
    for (int64_t offset = 0; offset < 16; ++offset) {
      for (int64_t out_offset : {0, 1, 2, 3, 7}) ExpectAnySame(encoding, 37, 66 + offset % 4, offset, out_offset);
    }
  }
}

// Rows that end in the middle of a group, blocks of threads that begin in the middle of a row, and more elements than a
// block of threads decodes.
TEST_F(DecodePlaneTest, LargePlanesOfAnyWidthDecodeAsOnTheHost) {
  for (const Encoding& encoding : AllEncodings()) {
    for (int64_t cols : {8, 9, 33, 1030, 4097, 4099}) ExpectAnySame(encoding, 1200000 / cols, cols, 0, 0);
    ExpectAnySame(encoding, 301, 4099, 5, 3);
  }
}

// Every code of 16 bits, and every code of 8 bits under every scale of 8 bits.
TEST_F(DecodePlaneTest, EveryCodeDecodesAsOnTheHost) {
  for (Format format : {Format::kBF16, Format::kFP16}) {
    SCOPED_TRACE(FormatName(format));
    OwnedPlane encoded({format}, Plane::kRowWise, 256, 256);
    for (size_t i = 0; i < encoded.data.size(); ++i)
      encoded.data[i] = static_cast<uint8_t>(i % 2 == 0 ? i / 2 : i / 512);
    ExpectSame({format}, Plane::kRowWise, encoded, 256, 256);
  }
  for (ElementType element : {ElementType::kE4M3, ElementType::kE5M2}) {
    SCOPED_TRACE(ElementTypeName(element));
    const Encoding encoding = {Format::kMXFP8, element};
    OwnedPlane columns(encoding, Plane::kColumnWise, 32 * 8, 256);
    for (size_t i = 0; i < columns.data.size(); ++i) columns.data[i] = static_cast<uint8_t>(i / 256);
    for (size_t i = 0; i < columns.scales.size(); ++i) columns.scales[i] = static_cast<uint8_t>(i);
    ExpectSame(encoding, Plane::kColumnWise, columns, 32 * 8, 256);
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

// Decodes planes of every encoding, size and alignment at once, of some kinds more than fit one launch.
TEST_F(DecodePlaneTest, ManyPlanesDecodeAsOnTheHost) {
  RandomFloats random(53);
  std::vector<OwnedPlane> planes;
  std::vector<DeviceArray<uint8_t>> bytes;
  std::vector<DeviceArray<float>> outs;
  std::vector<PlaneDecode> decodes;
  const std::vector<Encoding> encodings = AllEncodings();
  for (int i = 0; i < 300; ++i) {
    const Encoding encoding = i % 3 == 0 ? Encoding{Format::kFP8Block128x128} : encodings[i % encodings.size()];
    const int64_t rows = random.Integer(0, 200);
    const int64_t cols = i % 2 == 0 ? 8 * random.Integer(1, 50) : random.Integer(1, 300);
    OwnedPlane& plane = planes.emplace_back(encoding, Plane::kRowWise, rows, cols);
    for (std::vector<uint8_t>* of : {&plane.data, &plane.scales, &plane.amax}) {
      for (uint8_t& byte : *of) byte = static_cast<uint8_t>(random.Integer(0, 255));
      bytes.emplace_back(*of, i % 5 == 0 ? i % 4 : 0);
    }
    outs.emplace_back(std::vector<float>(rows * cols, -1.0f), 4 * (i % 7 == 0 ? 1 : 0));
    const size_t first = bytes.size() - 3;
    decodes.push_back({encoding,
                       Plane::kRowWise,
                       {bytes[first].data(), bytes[first + 1].data(), bytes[first + 2].data()},
                       rows,
                       cols,
                       DecodedType::kFP32,
                       outs.back().data()});
  }
  ASSERT_OK(DecodePlanes(decodes, stream()));
  Synchronize();
  for (size_t i = 0; i < decodes.size(); ++i) {
    const PlaneDecode& each = decodes[i];
    const std::vector<float> expected = Decode(each.encoding, Plane::kRowWise, planes[i], each.rows, each.cols);
    EXPECT_TRUE(SameBytes(AsBytes(expected), AsBytes(outs[i].Download()))) << "plane " << i;
  }
}

TEST_F(DecodePlaneTest, PlanesThatAFormatLacksAreRefused) {
  EXPECT_THAT(DecodePlane({Format::kBF16}, Plane::kColumnWise, {}, 1, 1, DecodedType::kFP32, nullptr, stream()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("no column-wise plane")));
}

}  // namespace
}  // namespace paramshard::gpu
