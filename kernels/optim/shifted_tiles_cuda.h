// Encoding the tiles of extents whose rows do not begin at aligned addresses.
//
// The update walks a tile's elements as memory has them (shifted_rows.h) and leaves the new master in shared memory;
// when all threads are there, rows are read from it with their shifts and encoded.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_SHIFTED_TILES_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_SHIFTED_TILES_CUDA_H_

#include <cstdint>

#include "kernels/formats/float8.h"
#include "kernels/optim/shifted_rows.h"
#include "kernels/optim/step_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"
#include "kernels/optim/tiles_cuda.h"

namespace paramshard::gpu {

// A thread's quads of a tile: one of every kThreads slots.
class ShiftedWalk {
 public:
  struct Place : ShiftedRows::Place {
    int slot;
  };

  explicit __device__ ShiftedWalk(const ShiftedRows& pieces)
      : rows(RowsUpTo(kThreads, pieces.slots() - Warp() * kWarpSize, kThreads)), pieces_(pieces) {}

  __device__ Place At(int row) const { return PlaceOf(row * kThreads + static_cast<int>(threadIdx.x)); }
  __device__ void Advance(Place& place) const { place = PlaceOf(place.slot + kThreads); }

  __device__ const ShiftedRows& pieces() const { return pieces_; }

  // Slots of the warp that exist.
  int rows;

 private:
  __device__ Place PlaceOf(int slot) const { return {pieces_.At(slot), slot}; }

  ShiftedRows pieces_;
};

// Rows of shared memory that hold the quads of a tile.
constexpr int ShiftedRowCount(MatrixShape tile) {
  return static_cast<int>((tile.rows * ShiftedQuads(static_cast<int>(tile.cols)) + kThreads - 1) / kThreads);
}

// Base of the tiles of formats in blocks.
class ShiftedTile {
 public:
  __device__ const ShiftedWalk& walk() const { return walk_; }
  __device__ uint32_t Valid(const ShiftedWalk::Place& place) const { return place.valid; }

 protected:
  __device__ ShiftedTile(const DeviceExtent& extent, const KernelTile& tile, MatrixShape shape)
      : extent_(extent),
        tile_(tile),
        first_row_(tile.row * shape.rows),
        first_column_(tile.column * shape.cols),
        rows_(static_cast<int>(min(shape.rows, extent.rows - first_row_))),
        columns_(static_cast<int>(min(shape.cols, extent.columns - first_column_))),
        walk_(ShiftedRows(extent.phase, first_row_ * extent.columns + first_column_, extent.columns, rows_, columns_)) {
  }

  // An element of the new master, when all threads have kept theirs.
  __device__ float Master(int row, int column) const {
    return reinterpret_cast<const float*>(shared_memory)[walk_.pieces().Position(row, column)];
  }

  // Reads this lane's part of 128 elements from `column` on. Elements beyond the row are undefined.
  __device__ void ReadMasters(int row, int column, float (&values)[kQuad]) const {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[j] = Master(row, column + Lane() * kQuad + j);
  }

  // Elements of 128 from `column` that exist.
  __device__ int CountFrom(int column) const { return min(kWarpColumns, columns_ - column); }

  __device__ int64_t Index(int row, int column) const {
    return (first_row_ + row) * extent_.columns + first_column_ + column;
  }

  const DeviceExtent& extent_;
  const KernelTile& tile_;
  int64_t first_row_;
  int64_t first_column_;
  int rows_;
  int columns_;
  ShiftedWalk walk_;
};

// Stores the first `count` of the warp's 128 codes, four per lane; this lane's codes belong at `own`. If there are 128,
// stores them in aligned words; a lane each stores the bytes before the first and after the last word, four together.
__device__ __forceinline__ void StoreCodeRow(uint32_t codes, int count, uint8_t* own) {
  if (count < kWarpColumns) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (Lane() * kQuad + j < count) StoreGlobal(static_cast<uint8_t>(codes >> (8 * j)), own + j);
    }
    return;
  }
  // The same for all lanes.
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(own) & 3);
  const uint32_t before = __shfl_up_sync(~0u, codes, 1);
  if (Lane() > 0 || shift == 0) StoreGlobal(__funnelshift_l(before, codes, 8 * shift), own - shift);
  const int lane_of_edge = Lane() < kQuad - shift ? 0 : kWarpSize - 1;
  const uint32_t edge = __shfl_sync(~0u, codes, lane_of_edge);
  if (shift != 0 && Lane() < kQuad) {
    StoreGlobal(static_cast<uint8_t>(edge >> (8 * Lane())), own + (lane_of_edge - Lane()) * kQuad + Lane());
  }
}

// A tile of one long row.
class ShiftedFlatTile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr int kRows = ShiftedRowCount({1, kFlatTileColumns});
  static constexpr int kExtraBytes = 0;

  __device__ ShiftedFlatTile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch& launch)
      : encoder_(extent, tile, launch), walk_(PiecesOf(extent, tile)) {}

  __device__ const ShiftedWalk& walk() const { return walk_; }
  __device__ uint32_t Valid(const ShiftedWalk::Place& place) const { return place.valid; }

  __device__ void Visit(const ShiftedWalk::Place& place, uint32_t valid, const float (&master)[kQuad]) {
    encoder_.Visit(place.index, valid, master);
  }

  __device__ void Finish() const { encoder_.Finish(); }

 private:
  __device__ static ShiftedRows PiecesOf(const DeviceExtent& extent, const KernelTile& tile) {
    const int64_t first = tile.column * kFlatTileColumns;
    const int64_t count = min(kFlatTileColumns, extent.rows * extent.columns - first);
    return ShiftedRows(extent.phase, first, 0, 1, static_cast<int>(count));
  }

  FlatEncoder<ShiftedAccess> encoder_;
  ShiftedWalk walk_;
};

// MXFP8 and MXFP8_2D. Each thread finds the amax of one column, and each warp, which has 32 columns, the amaxes of
// their blocks in rows, or of the square; then each warp encodes halves of rows.
template <typename Element>
class ShiftedMxfp8Tile : public ShiftedTile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr MatrixShape kShape = GpuFormatOf(Format::kMXFP8).step_tile_shape;
  static constexpr int kRows = ShiftedRowCount(kShape);
  // Multipliers of columns, and scales of blocks in rows.
  static constexpr int kExtraBytes = static_cast<int>(kShape.cols) * 4 + static_cast<int>(kShape.rows) * kWarps;

  __device__ ShiftedMxfp8Tile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch&)
      : ShiftedTile(extent, tile, kShape), has_squares_(extent.encoding.format == Format::kMXFP8_2D) {}

  __device__ void Visit(const ShiftedWalk::Place&, uint32_t, const float (&)[kQuad]) {}

  __device__ void Finish() {
    __syncthreads();
    FindScales();
    __syncthreads();
    // The plane with scales of columns or squares, and the plane with scales of rows.
    uint8_t* const column_data = has_squares_ ? extent_.row_wise.data : extent_.column_wise.data;
    uint8_t* const row_data = has_squares_ ? nullptr : extent_.row_wise.data;
    if (row_data != nullptr) StoreRowScales();
    const int column = Warp() % kHalves * kWarpColumns;
    const int count = CountFrom(column);
    if (count <= 0) return;
    const float4 own = reinterpret_cast<const float4*>(ColumnMultipliers() + column)[Lane()];
    const float of_columns[kQuad] = {own.x, own.y, own.z, own.w};
    constexpr int kRowStep = kWarps / kHalves;
    const uint8_t* scales = RowScales() + Warp() / kHalves * kWarps + (column + Lane() * kQuad) / 32;
    int64_t index = Index(Warp() / kHalves, column + Lane() * kQuad);
    for (int row = Warp() / kHalves; row < rows_; row += kRowStep) {
      float values[kQuad];
      ReadMasters(row, column, values);
      if (row_data != nullptr) {
        const float of_row = E8M0EncodeMultiplier(*scales);
        const float multipliers[kQuad] = {of_row, of_row, of_row, of_row};
        StoreCodeRow(EncodeFloat8<Element>(values, multipliers), count, row_data + index);
      }
      if (column_data != nullptr) StoreCodeRow(EncodeFloat8<Element>(values, of_columns), count, column_data + index);
      scales += kRowStep * kWarps;
      index += kRowStep * extent_.columns;
    }
  }

 private:
  static constexpr int kHalves = static_cast<int>(kShape.cols) / kWarpColumns;

  __device__ static float* ColumnMultipliers() { return reinterpret_cast<float*>(MasterRow(kRows)); }
  // [row][block of 32 columns].
  __device__ static uint8_t* RowScales() { return reinterpret_cast<uint8_t*>(ColumnMultipliers() + kShape.cols); }

  __device__ int64_t BlocksAcross() const { return (extent_.columns + 31) / 32; }

  __device__ void FindScales() const {
    const int thread = static_cast<int>(threadIdx.x);
    // Threads beyond the last column take it, too, which changes no amax.
    const int column = min(thread, columns_ - 1);
    float amax = 0.0f;
    // Amax of the warp's block in row number Lane().
    uint32_t row_amax = 0;
#pragma unroll 8
    for (int row = 0; row < rows_; ++row) {
      const float magnitude = fmaxf(0.0f, fabsf(Master(row, column)));
      amax = fmaxf(amax, magnitude);
      if (has_squares_) continue;
      const uint32_t block_amax = __reduce_max_sync(~0u, FloatBits(magnitude));
      if (row == Lane()) row_amax = block_amax;
    }
    if (has_squares_) amax = FloatFromBits(__reduce_max_sync(~0u, FloatBits(amax)));
    const uint8_t scale = ComputeE8M0Scale(amax, Element::kMax);
    ColumnMultipliers()[thread] = E8M0EncodeMultiplier(scale);
    if (thread < columns_) StoreColumnScale(scale, thread);
    RowScales()[Lane() * kWarps + Warp()] = ComputeE8M0Scale(FloatFromBits(row_amax), Element::kMax);
  }

  // Stores the scale of a column or a square.
  __device__ void StoreColumnScale(uint8_t scale, int column) const {
    if (!has_squares_) {
      if (extent_.column_wise.data == nullptr) return;
      StoreGlobal(scale, extent_.column_wise.scales + tile_.row * extent_.columns + first_column_ + column);
    } else if (Lane() == 0 && extent_.row_wise.data != nullptr) {
      StoreGlobal(scale, extent_.row_wise.scales + tile_.row * BlocksAcross() + (first_column_ + column) / 32);
    }
  }

  // A thread for each.
  __device__ void StoreRowScales() const {
    const int row = static_cast<int>(threadIdx.x) / kWarps;
    const int block = static_cast<int>(threadIdx.x) % kWarps;
    if (row >= rows_ || block * 32 >= columns_) return;
    StoreGlobal(RowScales()[threadIdx.x],
                extent_.row_wise.scales + (first_row_ + row) * BlocksAcross() + first_column_ / 32 + block);
  }

  const bool has_squares_;
};

template <typename Element>
class ShiftedFp8BlockTile : public ShiftedTile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr MatrixShape kShape = GpuFormatOf(Format::kFP8Block128x128).step_tile_shape;
  static constexpr int kRows = ShiftedRowCount(kShape);
  static constexpr int kExtraBytes = 0;

  __device__ ShiftedFp8BlockTile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch&)
      : ShiftedTile(extent, tile, kShape) {}

  __device__ void Visit(const ShiftedWalk::Place&, uint32_t valid, const float (&master)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) amax_[j] = fmaxf(amax_[j], (valid >> j & 1) != 0 ? fabsf(master[j]) : 0.0f);
  }

  __device__ void Finish() {
    if (extent_.row_wise.data == nullptr) return;
    // Also waits for all masters.
    const float scale = ComputeScale(BlockAmax(amax_), Element::kMax, extent_.encoding.power_of_two_scales);
    if (threadIdx.x == 0) StoreBlockScale(1.0f / scale, extent_, tile_);
    const float multipliers[kQuad] = {scale, scale, scale, scale};
    uint8_t* own = extent_.row_wise.data + Index(Warp(), Lane() * kQuad);
#pragma unroll 2
    for (int row = Warp(); row < rows_; row += kWarps) {
      float values[kQuad];
      ReadMasters(row, 0, values);
      StoreCodeRow(EncodeFloat8<Element>(values, multipliers), columns_, own);
      own += kWarps * extent_.columns;
    }
  }

 private:
  float amax_[kQuad] = {};
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_SHIFTED_TILES_CUDA_H_
