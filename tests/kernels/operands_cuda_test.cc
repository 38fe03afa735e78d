// Scales and transposes on a GPU: the bytes of the host.
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/scale_layout.h"
#include "kernels/formats/scale_layout_cuda.h"
#include "kernels/formats/transpose.h"
#include "kernels/formats/transpose_cuda.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/status_matchers.h"

namespace paramshard::gpu {
namespace {

std::vector<uint8_t> AnyBytes(RandomFloats& random, int64_t count) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Integer(0, 255));
  return bytes;
}

class ArrangeScalesTest : public GpuTest {
 protected:
  void ExpectHostBytes(Format format, Plane plane, Plane operand, int64_t rows, int64_t cols, int64_t offset) {
    RandomFloats random(61);
    const ElementType element = format == Format::kNVFP4_2D ? ElementType::kE2M1 : ElementType::kE4M3;
    const Encoding encoding = {format, element};
    const std::vector<uint8_t> compact = AnyBytes(random, ScaleBytes(encoding, plane, rows, cols));
    const DeviceArray<uint8_t> source(compact, offset);
    for (ScaleLayout layout : {ScaleLayout::kCompact, ScaleLayout::kPadded128x4, ScaleLayout::kSwizzled128x4}) {
      SCOPED_TRACE(absl::StrCat(FormatName(format), " ", rows, " x ", cols, " layout ", static_cast<int>(layout)));
      ASSERT_OK_AND_ASSIGN(const ScaleArrangement arrangement,
                           FindScaleArrangement(encoding, plane, operand, rows, cols, layout));
      std::vector<uint8_t> expected(arrangement.bytes());
      paramshard::ArrangeScales(arrangement, compact.data(), expected.data());
      const DeviceArray<uint8_t> target(std::vector<uint8_t>(expected.size(), 0xee), offset);
      ASSERT_OK(ArrangeScales(arrangement, source.data(), target.data(), stream()));
      Synchronize();
      EXPECT_EQ(target.Download(), expected);
    }
  }
};

TEST_F(ArrangeScalesTest, BytesAreThoseOfTheHost) {
  for (int64_t offset : {0, 1}) {
    for (int64_t rows : {1, 33, 128, 300}) {
      for (int64_t cols : {1, 32, 130, 700}) {
        ExpectHostBytes(Format::kMXFP8, Plane::kRowWise, Plane::kRowWise, rows, cols, offset);
        ExpectHostBytes(Format::kMXFP8, Plane::kColumnWise, Plane::kColumnWise, rows, cols, offset);
        for (Format format : {Format::kMXFP8_2D, Format::kNVFP4_2D}) {
          ExpectHostBytes(format, Plane::kRowWise, Plane::kRowWise, rows, cols, offset);
          ExpectHostBytes(format, Plane::kRowWise, Plane::kColumnWise, rows, cols, offset);
        }
      }
    }
  }
}

class TransposeNibblesTest : public GpuTest {};

TEST_F(TransposeNibblesTest, BytesAreThoseOfTheHost) {
  RandomFloats random(62);
  for (int64_t offset : {0, 1}) {
    for (int64_t rows : {0, 1, 2, 127, 128, 129, 300}) {
      for (int64_t cols : {1, 2, 64, 128, 257}) {
        SCOPED_TRACE(absl::StrCat(rows, " x ", cols));
        const std::vector<uint8_t> data = AnyBytes(random, rows * ((cols + 1) / 2));
        std::vector<uint8_t> expected(cols * ((rows + 1) / 2));
        paramshard::TransposeNibbles(data.data(), rows, cols, expected.data());
        const DeviceArray<uint8_t> source(data, offset);
        const DeviceArray<uint8_t> target(std::vector<uint8_t>(expected.size(), 0xee), offset);
        ASSERT_OK(TransposeNibbles(source.data(), rows, cols, target.data(), stream()));
        Synchronize();
        EXPECT_EQ(target.Download(), expected);
      }
    }
  }
}

}  // namespace
}  // namespace paramshard::gpu
