#include "kernels/copy/strided_words_cuda.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

class StridedWordsTest : public GpuTest {
 protected:
  // A matrix of random words at any alignment, and where its copy goes.
  struct Matrix {
    StridedWords copy;
    std::vector<uint32_t> expected;
    DeviceArray<uint8_t> source;
    DeviceArray<uint32_t> target;
  };

  static Matrix MakeMatrix(RandomFloats& random, int kind) {
    const int64_t rows = random.Integer(0, 40);
    const int64_t cols = random.Integer(1, 40);
    std::vector<uint8_t> bytes(4 * rows * cols + 4);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Integer(0, 255));
    Matrix matrix;
    // In order, transposed, and one word for all elements.
    const int64_t strides[3][2] = {{cols, 1}, {1, rows}, {0, 0}};
    matrix.copy = {.row_stride = strides[kind][0], .col_stride = strides[kind][1], .rows = rows, .cols = cols};
    matrix.copy.target_stride = cols + random.Integer(0, 3);
    matrix.expected.assign(rows * matrix.copy.target_stride, 0x11111111);
    matrix.target = DeviceArray<uint32_t>(matrix.expected);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t word = row * matrix.copy.row_stride + col * matrix.copy.col_stride;
        std::memcpy(&matrix.expected[row * matrix.copy.target_stride + col], bytes.data() + 4 * word, 4);
      }
    }
    matrix.source = DeviceArray<uint8_t>(bytes, random.Integer(0, 15));
    matrix.copy.source = matrix.source.data();
    matrix.copy.target = matrix.target.data();
    return matrix;
  }
};

// Tests counts around the number of matrices in one launch.
TEST_F(StridedWordsTest, EveryWordArrivesAndNoOther) {
  const uint64_t seed = FirstSeed(84);
  RandomFloats random(seed);
  for (const int count : {0, 1, 2, 15, 16, 17, 40}) {
    SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed, ", ", count, " matrices"));
    std::vector<Matrix> matrices;
    std::vector<StridedWords> copies;
    for (int i = 0; i < count; ++i) {
      matrices.push_back(MakeMatrix(random, i % 3));
      copies.push_back(matrices.back().copy);
    }
    ASSERT_OK(CopyStridedWords(copies, stream()));
    Synchronize();
    for (const Matrix& matrix : matrices) EXPECT_EQ(matrix.target.Download(), matrix.expected);
  }
}

}  // namespace
}  // namespace paramshard::gpu
