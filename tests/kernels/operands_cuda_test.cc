// Scales and transposes on a GPU: the bytes of the host.
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/formats/format.h"
#include "kernels/formats/scale_layout.h"
#include "kernels/formats/scale_layout_cuda.h"
#include "kernels/formats/transpose.h"
#include "kernels/formats/transpose_cuda.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/status_matchers.h"

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
    const Encoding encoding = {format, DefaultElement(format)};
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

class TransposeTest : public GpuTest {
 protected:
  using HostTranspose = void (*)(const uint8_t*, int64_t, int64_t, uint8_t*);
  using GpuTranspose = absl::Status (*)(absl::Span<const Transposition>, cudaStream_t);

  struct Transposes {
    int bits;
    HostTranspose host;
    GpuTranspose gpu;
  };

  static Transposes Bytes() { return {8, paramshard::TransposeBytes, TransposeBytes}; }
  static Transposes Nibbles() { return {4, paramshard::TransposeNibbles, TransposeNibbles}; }

  void ExpectHostBytes(const Transposes& transposes, int64_t rows, int64_t cols, int64_t offset, int64_t out_offset) {
    const int bits = transposes.bits;
    SCOPED_TRACE(absl::StrCat(rows, " x ", cols, " of ", bits, " bits at ", offset, ", ", out_offset));
    const std::vector<uint8_t> data = AnyBytes(random_, rows * ((cols * bits + 7) / 8));
    std::vector<uint8_t> expected(cols * ((rows * bits + 7) / 8));
    transposes.host(data.data(), rows, cols, expected.data());
    const DeviceArray<uint8_t> source(data, offset);
    const DeviceArray<uint8_t> target(std::vector<uint8_t>(expected.size(), 0xee), out_offset);
    ASSERT_OK(transposes.gpu({{source.data(), rows, cols, target.data()}}, stream()));
    Synchronize();
    EXPECT_EQ(target.Download(), expected);
  }

  // Around the sizes of the squares and the bands that are transposed at a time.
  void ExpectHostBytesOfEverySize(const Transposes& transposes) {
    for (int64_t rows : {0,   1,   2,   3,   5,   15,  16,  17,  31,  63,  64,  127, 128, 129,
                         160, 239, 240, 241, 255, 256, 257, 300, 479, 480, 481, 513, 1000}) {
      for (int64_t cols : {1, 2, 31, 64, 100, 127, 128, 130, 256, 257, 272}) {
        ExpectHostBytes(transposes, rows, cols, 0, 0);
        ExpectHostBytes(transposes, rows, cols, (rows + cols) % 16, cols % 16);
      }
    }
  }

  void ExpectHostBytesAtEveryAlignment(const Transposes& transposes) {
    for (int64_t offset = 0; offset < 16; ++offset) {
      for (int64_t out_offset = 0; out_offset < 16; ++out_offset) {
        ExpectHostBytes(transposes, 490 + offset, 125 + out_offset, offset, out_offset);
      }
    }
  }

 private:
  RandomFloats random_{62};
};

TEST_F(TransposeTest, BytesAreThoseOfTheHost) { ExpectHostBytesOfEverySize(Bytes()); }

TEST_F(TransposeTest, NibblesAreThoseOfTheHost) { ExpectHostBytesOfEverySize(Nibbles()); }

TEST_F(TransposeTest, BytesAreThoseOfTheHostAtEveryAlignment) { ExpectHostBytesAtEveryAlignment(Bytes()); }

TEST_F(TransposeTest, NibblesAreThoseOfTheHostAtEveryAlignment) { ExpectHostBytesAtEveryAlignment(Nibbles()); }

TEST_F(TransposeTest, ManyMatricesAreThoseOfTheHost) {
  RandomFloats random(63);
  for (const int count : {0, 1, 15, 16, 17, 40}) {
    std::vector<std::vector<uint8_t>> expected;
    std::vector<DeviceArray<uint8_t>> sources, targets;
    std::vector<Transposition> matrices;
    for (int i = 0; i < count; ++i) {
      const int64_t rows = i % 2 == 0 ? 16 * random.Integer(0, 20) : random.Integer(0, 300);
      const int64_t cols = i % 2 == 0 ? 16 * random.Integer(1, 20) : random.Integer(1, 300);
      const std::vector<uint8_t> data = AnyBytes(random, rows * cols);
      expected.emplace_back(data.size());
      paramshard::TransposeBytes(data.data(), rows, cols, expected.back().data());
      sources.emplace_back(data);
      targets.emplace_back(std::vector<uint8_t>(data.size(), 0xee));
      matrices.push_back({sources.back().data(), rows, cols, targets.back().data()});
    }
    ASSERT_OK(TransposeBytes(matrices, stream()));
    Synchronize();
    for (int i = 0; i < count; ++i) EXPECT_EQ(targets[i].Download(), expected[i]) << i << " of " << count;
  }
}

}  // namespace
}  // namespace paramshard::gpu
