// Rows of a matrix, cut into groups of four elements that are aligned in memory although the rows are not.
//
// Internal to kernels/.
//
// A row of an odd matrix begins anywhere. Its piece inside a tile is walked in quads of four elements, from the last
// multiple of kShiftAlignment elements before it: every quad can be accessed at once, and no two of a warp's accesses
// share a sector. Quads in which the piece begins or ends contain elements of other pieces. All rows of a tile get the
// same number of quads, so a slot (the number of a quad in the tile) gives the quad's place in the array and in shared
// memory.

#ifndef PARAMSHARD_KERNELS_OPTIM_SHIFTED_ROWS_H_
#define PARAMSHARD_KERNELS_OPTIM_SHIFTED_ROWS_H_

#include <cstdint>

#include "kernels/base/host_device.h"

namespace paramshard::gpu {

// 64 bytes of float32, and a sector (32 bytes) of types of two bytes.
constexpr int kShiftAlignment = 16;

// Returns the number of quads that a row of `width` elements needs at most, for any beginning.
constexpr int ShiftedQuads(int width) { return (kShiftAlignment - 1 + width + 3) / 4; }

class ShiftedRows {
 public:
  // `rows` pieces of `width` elements, the first of which is number `first` of its array, `pitch` elements apart;
  // element 0 of the array is `phase` elements past an aligned address.
  //
  // Requires: pitch < 2^31.
  PARAMSHARD_HOST_DEVICE ShiftedRows(int phase, int64_t first, int64_t pitch, int rows, int width)
      : first_(first), pitch_(static_cast<int>(pitch)), rows_(rows), width_(width) {
    shift_ = static_cast<int>((phase + first) & (kShiftAlignment - 1));
    shift_step_ = static_cast<int>(pitch & (kShiftAlignment - 1));
    quads_ = rows == 1 ? (shift_ + width + 3) / 4 : ShiftedQuads(width);
    reciprocal_ = 0xffffffffu / static_cast<uint32_t>(quads_) + 1;
  }

  PARAMSHARD_HOST_DEVICE int slots() const { return rows_ * quads_; }

  struct Place {
    // Index of the quad's first element in the array. May be negative, and may belong to another row.
    int64_t index;
    // A bit for each element that belongs to the piece. None for a slot that does not exist.
    uint32_t valid;
  };

  // Requires: 0 <= slot < 2^15.
  PARAMSHARD_HOST_DEVICE Place At(int slot) const {
    // slot / quads_: the reciprocal is too large by less than 2^-32 of itself times quads_.
    const int row = static_cast<int>(uint64_t{static_cast<uint32_t>(slot)} * reciprocal_ >> 32);
    const int column = (slot - row * quads_) * 4 - Shift(row);
    // Elements before the piece, and up to its end.
    const int before = column < 0 ? -column : 0;
    int count = width_ - column;
    count = count < 0 ? 0 : count;
    count = count > 4 ? 4 : count;
    const uint32_t valid = (0xfu << before) & ((1u << count) - 1);
    return {first_ + int64_t{row} * pitch_ + column, row < rows_ ? valid : 0u};
  }

  // Returns the position of an element in shared memory, in elements.
  PARAMSHARD_HOST_DEVICE int Position(int row, int column) const { return row * quads_ * 4 + Shift(row) + column; }

 private:
  PARAMSHARD_HOST_DEVICE int Shift(int row) const { return (shift_ + row * shift_step_) & (kShiftAlignment - 1); }

  int64_t first_;
  int pitch_;
  int rows_;
  int width_;
  // Elements of its first quad that are before a row's piece, for the first row and how it grows.
  int shift_;
  int shift_step_;
  int quads_;
  uint32_t reciprocal_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_SHIFTED_ROWS_H_
