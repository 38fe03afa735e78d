#include "kernels/optim/shifted_rows.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace paramshard::gpu {
namespace {

// Every element of the pieces is valid in one slot, at its position; quads lie at aligned addresses.
void ExpectEveryElementOnce(int phase, int64_t first, int64_t pitch, int rows, int width) {
  SCOPED_TRACE(absl::StrCat("phase ", phase, ", from ", first, ", ", rows, " x ", width, " of ", pitch));
  const ShiftedRows pieces(phase, first, pitch, rows, width);
  ASSERT_LE(pieces.slots(), rows * ShiftedQuads(width));
  std::vector<int64_t> index_at(pieces.slots() * 4 + 4, -1);
  int64_t elements = 0;
  for (int slot = 0; slot < pieces.slots() + 300; ++slot) {
    const ShiftedRows::Place place = pieces.At(slot);
    if (place.valid == 0) continue;
    ASSERT_LT(slot, pieces.slots());
    ASSERT_EQ((place.index + phase) % 4, 0);
    for (int j = 0; j < 4; ++j) {
      if ((place.valid >> j & 1) == 0) continue;
      index_at[slot * 4 + j] = place.index + j;
      ++elements;
    }
  }
  ASSERT_EQ(elements, int64_t{rows} * width);
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < width; ++column) {
      ASSERT_EQ(index_at[pieces.Position(row, column)], first + row * pitch + column);
    }
  }
}

TEST(ShiftedRowsTest, EveryElementHasOneSlot) {
  for (int phase : {0, 3, 5, 15}) {
    for (int64_t pitch : {1, 3, 4, 17, 100, 4099, 4100}) {
      for (int width : {1, 2, 3, 4, 5, 16, 31, 100, 128, 256}) {
        if (width > pitch) continue;
        for (int rows : {1, 2, 31, 32, 128}) ExpectEveryElementOnce(phase, 7 * pitch, pitch, rows, width);
      }
    }
  }
}

TEST(ShiftedRowsTest, LongRowsHaveNoQuadTooMany) {
  EXPECT_EQ(ShiftedRows(0, 8192, 100000, 1, 8192).slots(), 2048);
  ExpectEveryElementOnce(0, 8192, 100000, 1, 8192);
  ExpectEveryElementOnce(13, 8192, 100000, 1, 8192);
  ExpectEveryElementOnce(13, 0, 1, 1, 1);
}

}  // namespace
}  // namespace paramshard::gpu
