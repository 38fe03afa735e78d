// Encoding the tiles of extents whose rows are walked one beside the other: which thread has which elements, and what it does
// with the new master.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_

#include <cstdint>

#include "kernels/formats/float8.h"
#include "kernels/optim/adam_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {

// Stores the scale of a 128 x 128 block.
__device__ __forceinline__ void StoreBlockScale(float scale_inv, const DeviceExtent& extent, const AdamTile& tile) {
  const int64_t blocks_across = (extent.columns + 127) / 128;
  StoreBytes(scale_inv, extent.row_wise.scales + (tile.row * blocks_across + tile.column) * sizeof(float));
}

// Encodes the rows of a tile that holds a part of a long row, element by element.
template <typename Access>
class FlatTile {
 public:
  static constexpr int kRows = 8;
  static constexpr int kExtraBytes = 0;

  __device__ FlatTile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent) {
    constexpr int64_t kTileColumns = GpuTileShape(Format::kFP32).cols;
    constexpr int64_t kRowColumns = kThreads * kQuad;
    const int64_t column = tile.column * kTileColumns + Warp() * kWarpColumns;
    walk_ = {column + Lane() * Access::kFirst, kRowColumns, RowsUpTo(kRows, extent.columns - column, kRowColumns)};
  }

  __device__ const Walk& walk() const { return walk_; }
  // Which of the elements from `index`, of a row that exists, exist.
  __device__ uint32_t Valid(const Walk::Place& place) const { return Access::Below(place.index, extent_.columns); }

  __device__ void Visit(const Walk::Place& place, uint32_t valid, const float (&master)[kQuad]) {
    uint8_t* const data = extent_.row_wise.data;
    if (data == nullptr) return;
    if (extent_.encoding.format == Format::kFP32) {
      const Quad<float> quad = {{master[0], master[1], master[2], master[3]}};
      Access::StoreAnywhere(quad, place.index, valid, data);
    } else {
      Access::StoreAnywhere(EncodeBFloat16Quad(master), place.index, valid, data);
    }
  }

  __device__ void Finish() {}

 private:
  const DeviceExtent& extent_;
  Walk walk_;
};

// Four groups of eight rows, of two warps side by side. The row-wise plane is encoded as rows pass; the column-wise one when
// the groups have told each other their columns' amaxes.
template <typename Access, typename Element>
class Mxfp8Tile {
 public:
  static constexpr int kRows = 8;
  static constexpr int kGroups = 4;
  static constexpr int kWarpsAcross = kWarps / kGroups;
  static constexpr int kColumns = kWarpsAcross * kWarpColumns;
  static constexpr int kExtraBytes = kGroups * kColumns * 4;

  __device__ Mxfp8Tile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent), tile_(tile) {
    columns_ = Access::Below(Column(), extent.columns);
    const int64_t rows = FirstColumn() < extent.columns ? extent.rows - FirstRow() : 0;
    walk_ = {FirstRow() * extent.columns + Column(), extent.columns, RowsUpTo(kRows, rows, 1)};
    row_scales_ = extent.row_wise.scales + FirstRow() * BlocksAcross() + FirstColumn() / 32;
  }

  __device__ const Walk& walk() const { return walk_; }
  __device__ uint32_t Valid(const Walk::Place&) const { return columns_; }

  __device__ void Visit(const Walk::Place& place, uint32_t valid, const float (&master)[kQuad]) {
    RaiseAmax(master, column_amax_);
    if (extent_.row_wise.data == nullptr) return;
    float multipliers[kQuad];
    const uint8_t scale = Access::template ScaleBlocks<Element>(master, multipliers);
    Access::StoreCodes(EncodeFloat8<Element>(master, multipliers), place.index, valid, extent_.row_wise.data);
    Access::StoreScale(scale, valid, row_scales_);
    row_scales_ += BlocksAcross();
  }

  __device__ void Finish() {
    if (extent_.column_wise.data == nullptr) return;
    ShareAmax();
    float multipliers[kQuad];
    const uint32_t scales = EncodeScales(column_amax_, multipliers);
    if (Group() == 0) {
      Access::StoreCodes(scales, tile_.row * extent_.columns + Column(), columns_, extent_.column_wise.scales);
    }
    int64_t index = walk_.first;
#pragma unroll 4
    for (int row = 0; row < walk_.rows; ++row) {
      const Quad<float> master = Access::template Read<float>(nullptr, 0, MasterRow(row));
      Access::StoreCodes(EncodeFloat8<Element>(master.values, multipliers), index, columns_, extent_.column_wise.data);
      index += walk_.stride;
    }
  }

 private:
  __device__ static int Group() { return Warp() / kWarpsAcross; }
  __device__ int64_t FirstRow() const { return tile_.row * int64_t{32} + Group() * kRows; }
  __device__ int64_t FirstColumn() const {
    return tile_.column * int64_t{kColumns} + Warp() % kWarpsAcross * kWarpColumns;
  }

  // This thread's first one.
  __device__ int64_t Column() const { return FirstColumn() + Lane() * Access::kFirst; }
  __device__ int64_t BlocksAcross() const { return (extent_.columns + 31) / 32; }

  // The scales of four blocks, as bytes, and what their elements are multiplied by.
  __device__ static uint32_t EncodeScales(const float (&amax)[kQuad], float (&multipliers)[kQuad]) {
    uint32_t scales = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const uint8_t scale = ComputeE8M0Scale(amax[j], Element::kMax);
      multipliers[j] = E8M0EncodeMultiplier(scale);
      scales |= uint32_t{scale} << (8 * j);
    }
    return scales;
  }

  // Raises every thread's amaxes to those of whole columns.
  __device__ void ShareAmax() {
    float* const shared = reinterpret_cast<float*>(MasterRow(kRows));
    float* const columns = shared + Warp() % kWarpsAcross * kWarpColumns + Lane() * Access::kFirst;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) columns[Group() * kColumns + j * Access::kStep] = column_amax_[j];
    __syncthreads();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        column_amax_[j] = fmaxf(column_amax_[j], columns[group * kColumns + j * Access::kStep]);
      }
    }
  }

  const DeviceExtent& extent_;
  const AdamTile& tile_;
  Walk walk_;
  // Which of this thread's columns exist.
  uint32_t columns_;
  float column_amax_[kQuad] = {};
  // Of the warp's first block in the next row.
  uint8_t* row_scales_;
};

// Warp w has rows w, w + 8, w + 16, ... of the block. All is encoded when the block's amax is known.
template <typename Access, typename Element>
class Fp8BlockTile {
 public:
  static constexpr int kRows = 16;
  static constexpr int kExtraBytes = 0;

  __device__ Fp8BlockTile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent), tile_(tile) {
    const int64_t first_row = tile.row * int64_t{128} + Warp();
    const int64_t column = tile.column * int64_t{kWarpColumns} + Lane() * Access::kFirst;
    columns_ = Access::Below(column, extent.columns);
    walk_ = {first_row * extent.columns + column, kWarps * extent.columns,
             RowsUpTo(kRows, extent.rows - first_row, kWarps)};
  }

  __device__ const Walk& walk() const { return walk_; }
  __device__ uint32_t Valid(const Walk::Place&) const { return columns_; }

  __device__ void Visit(const Walk::Place&, uint32_t, const float (&master)[kQuad]) { RaiseAmax(master, amax_); }

  __device__ void Finish() {
    if (extent_.row_wise.data == nullptr) return;
    const float scale = ComputeScale(BlockAmax(amax_), Element::kMax, extent_.encoding.power_of_two_scales);
    if (threadIdx.x == 0) StoreBlockScale(1.0f / scale, extent_, tile_);
    const float multipliers[kQuad] = {scale, scale, scale, scale};
    int64_t index = walk_.first;
#pragma unroll 4
    for (int row = 0; row < walk_.rows; ++row) {
      const Quad<float> master = Access::template Read<float>(nullptr, 0, MasterRow(row));
      Access::StoreCodes(EncodeFloat8<Element>(master.values, multipliers), index, columns_, extent_.row_wise.data);
      index += walk_.stride;
    }
  }

 private:
  const DeviceExtent& extent_;
  const AdamTile& tile_;
  Walk walk_;
  uint32_t columns_;
  float amax_[kQuad] = {};
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_
