// Encoding of the tiles of extents whose rows are walked side by side: each thread's elements, and its work on the new
// master.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_

#include <cstdint>

#include "kernels/formats/float8.h"
#include "kernels/optim/master_rows_cuda.h"
#include "kernels/optim/step_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {

// Stores the scale of a 128 x 128 block.
__device__ __forceinline__ void StoreBlockScale(float scale_inv, const DeviceExtent& extent, const KernelTile& tile) {
  const int64_t blocks_across = (extent.columns + 127) / 128;
  StoreBytes(scale_inv, extent.row_wise.scales + (tile.row * blocks_across + tile.column) * sizeof(float));
}

// Encodes elements one by one, and finds their amax: the formats without blocks, and NVFP4_2D while it waits for its
// amax.
template <typename Access>
class FlatEncoder {
 public:
  __device__ FlatEncoder(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch& launch)
      : extent_(extent), amax_of_extent_(launch.amaxes + tile.extent), multiplier_(1.0f) {
    const bool late = extent.amax_use == AmaxUse::kBeforeEncoding;
    const bool encodes = launch.pass == KernelPass::kEncode || (launch.pass == KernelPass::kStep && !late);
    encodes_ = encodes && extent.row_wise.data != nullptr;
    is_tensor_ = extent.amax_use != AmaxUse::kNone;
    records_ = is_tensor_ && launch.pass != KernelPass::kEncode;
    if (encodes_ && is_tensor_) multiplier_ = launch.scalings[tile.extent].multiplier;
  }

  __device__ void Visit(int64_t index, uint32_t valid, const float (&master)[kQuad]) {
    if (records_) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) amax_ = fmaxf(amax_, (valid >> j & 1) != 0 ? fabsf(master[j]) : 0.0f);
    }
    if (encodes_) Encode(index, valid, master);
  }

  __device__ void Finish() const {
    if (!records_) return;
    const uint32_t amax = __reduce_max_sync(~0u, FloatBits(amax_));
    // Magnitudes compare like their bits, and the largest is the same in any order.
    if (Lane() == 0 && amax != 0) atomicMax(amax_of_extent_, amax);
  }

 private:
  __device__ void Encode(int64_t index, uint32_t valid, const float (&master)[kQuad]) const {
    uint8_t* const data = extent_.row_wise.data;
    if (is_tensor_) {
      const float multipliers[kQuad] = {multiplier_, multiplier_, multiplier_, multiplier_};
      const uint32_t codes = extent_.encoding.element == ElementType::kE4M3 ? EncodeFloat8<E4M3>(master, multipliers)
                                                                            : EncodeFloat8<E5M2>(master, multipliers);
      return Access::StoreAnywhere(Quad<uint8_t>{codes}, index, valid, data);
    }
    switch (extent_.encoding.format) {
      case Format::kFP32:
        return Access::StoreAnywhere(Quad<float>{{master[0], master[1], master[2], master[3]}}, index, valid, data);
      case Format::kFP16:
        return Access::StoreAnywhere(EncodeFloat16Quad(master), index, valid, data);
      case Format::kBF16:
        return Access::StoreAnywhere(EncodeBFloat16Quad(master), index, valid, data);
      case Format::kFP8TensorCurrent:
      case Format::kFP8TensorDelayed:
        return;  // encoded above
      case Format::kFP8Block128x128:
      case Format::kMXFP8:
      case Format::kMXFP8_2D:
      case Format::kNVFP4_2D:
        return;  // these have tiles of their own
    }
  }

  const DeviceExtent& extent_;
  uint32_t* amax_of_extent_;
  float multiplier_;
  float amax_ = 0.0f;
  bool encodes_;
  bool is_tensor_;
  bool records_;
};

// A part of a long row, or eight rows by 1024 columns, a row to a warp, where blocks of moments end with rows.
template <typename Access>
class FlatTile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr int kRows = 8;
  static constexpr int kExtraBytes = 0;

  __device__ FlatTile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch& launch)
      : encoder_(extent, tile, launch) {
    if (extent.by_rows) {
      const int64_t row = tile.row * int64_t{kWarps} + Warp();
      const int64_t column = tile.column * int64_t{kRows * kWarpColumns};
      const int rows = row < extent.rows ? RowsUpTo(kRows, extent.columns - column, kWarpColumns) : 0;
      const int64_t blocks_across = (extent.columns + kWarpColumns - 1) / kWarpColumns;
      walk_ = {row * extent.columns + column + Lane() * Access::kFirst, kWarpColumns, rows,
               row * blocks_across + column / kWarpColumns, 1};
      end_ = (row + 1) * extent.columns;
    } else {
      constexpr int64_t kRowColumns = kThreads * kQuad;
      const int64_t column = tile.column * kFlatTileColumns + Warp() * kWarpColumns;
      end_ = extent.rows * extent.columns;
      walk_ = {column + Lane() * Access::kFirst, kRowColumns, RowsUpTo(kRows, end_ - column, kRowColumns),
               column / kWarpColumns, kWarps};
    }
  }

  __device__ const Walk& walk() const { return walk_; }
  // Returns the mask of existing elements at a place in an existing row.
  __device__ uint32_t Valid(const Walk::Place& place) const { return Access::Below(place.index, end_); }

  __device__ void Visit(const Walk::Place& place, uint32_t valid, const float (&master)[kQuad]) {
    encoder_.Visit(place.index, valid, master);
  }

  __device__ void Finish() const { encoder_.Finish(); }

 private:
  FlatEncoder<Access> encoder_;
  Walk walk_;
  // The element behind the last one.
  int64_t end_;
};

// The same for masters that are split into weights, which are the plane, and remainders.
template <typename Access>
class SplitFlatTile : public FlatTile<Access> {
 public:
  static constexpr bool kSplitMaster = true;
  static constexpr int kExtraBytes = SplitMasters<Access>::kExtraRows * FlatTile<Access>::kRows * kFloatRowBytes;

  using FlatTile<Access>::FlatTile;

  __device__ void Visit(const Walk::Place&, uint32_t, const float (&)[kQuad]) {}
  __device__ void Finish() const {}
};

// MXFP8 and MXFP8_2D. Four groups of eight rows, of two warps side by side. MXFP8's row-wise plane is encoded as rows
// pass; its column-wise one, and the squares of MXFP8_2D, when the groups have told each other their columns' amaxes.
template <typename Access, typename Element>
class Mxfp8Tile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr int kRows = 8;
  static constexpr int kGroups = 4;
  static constexpr int kWarpsAcross = kWarps / kGroups;
  static constexpr int kColumns = kWarpsAcross * kWarpColumns;
  static constexpr int kExtraBytes = kGroups * kColumns * 4;

  __device__ Mxfp8Tile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch&)
      : extent_(extent), tile_(tile), has_squares_(extent.encoding.format == Format::kMXFP8_2D) {
    columns_ = Access::Below(Column(), extent.columns);
    const int64_t rows = FirstColumn() < extent.columns ? extent.rows - FirstRow() : 0;
    const int64_t moment_blocks = (extent.columns + kWarpColumns - 1) / kWarpColumns;
    walk_ = {FirstRow() * extent.columns + Column(), extent.columns, RowsUpTo(kRows, rows, 1),
             FirstRow() * moment_blocks + FirstColumn() / kWarpColumns, moment_blocks};
    row_scales_ = extent.row_wise.scales + FirstRow() * BlocksAcross() + FirstColumn() / 32;
  }

  __device__ const Walk& walk() const { return walk_; }
  __device__ uint32_t Valid(const Walk::Place&) const { return columns_; }

  __device__ void Visit(const Walk::Place& place, uint32_t valid, const float (&master)[kQuad]) {
    RaiseAmax(master, column_amax_);
    if (extent_.row_wise.data == nullptr || has_squares_) return;
    float multipliers[kQuad];
    const uint8_t scale = Access::template ScaleBlocks<Element>(master, multipliers);
    Access::StoreCodes(EncodeFloat8<Element>(master, multipliers), place.index, valid, extent_.row_wise.data);
    Access::StoreScale(scale, valid, row_scales_);
    row_scales_ += BlocksAcross();
  }

  __device__ void Finish() {
    uint8_t* const data = has_squares_ ? extent_.row_wise.data : extent_.column_wise.data;
    if (data == nullptr) return;
    ShareAmax();
    if (has_squares_) Access::RaiseToBlocks(column_amax_);
    float multipliers[kQuad];
    const uint32_t scales = EncodeScales(column_amax_, multipliers);
    if (Group() == 0) StoreScales(scales);
    int64_t index = walk_.first;
#pragma unroll 4
    for (int row = 0; row < walk_.rows; ++row) {
      const Quad<float> master = Access::template Read<float>(nullptr, 0, MasterRow(row));
      Access::StoreCodes(EncodeFloat8<Element>(master.values, multipliers), index, columns_, data);
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

  // Returns the scales of four blocks, as bytes, and sets the factors of their elements.
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

  // Stores the scales of columns or squares.
  __device__ void StoreScales(uint32_t scales) const {
    if (has_squares_) {
      uint8_t* const first = extent_.row_wise.scales + tile_.row * BlocksAcross() + FirstColumn() / 32;
      Access::StoreScale(Access::OwnScale(scales), columns_, first);
    } else {
      Access::StoreCodes(scales, tile_.row * extent_.columns + Column(), columns_, extent_.column_wise.scales);
    }
  }

  // Raises every thread's amaxes to the amaxes of whole columns.
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
  const KernelTile& tile_;
  const bool has_squares_;
  Walk walk_;
  // Mask of this thread's existing columns.
  uint32_t columns_;
  float column_amax_[kQuad] = {};
  // Scale of the warp's first block in the next row.
  uint8_t* row_scales_;
};

// Warp w has rows w, w + 8, w + 16, ... of the block. All is encoded when the block's amax is known.
template <typename Access, typename Element>
class Fp8BlockTile {
 public:
  static constexpr bool kSplitMaster = false;
  static constexpr int kRows = 16;
  static constexpr int kExtraBytes = 0;

  __device__ Fp8BlockTile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch&)
      : extent_(extent), tile_(tile) {
    const int64_t first_row = tile.row * int64_t{128} + Warp();
    const int64_t blocks_across = (extent.columns + 127) / 128;
    const int64_t column = tile.column * int64_t{kWarpColumns} + Lane() * Access::kFirst;
    columns_ = Access::Below(column, extent.columns);
    walk_ = {first_row * extent.columns + column, kWarps * extent.columns,
             RowsUpTo(kRows, extent.rows - first_row, kWarps), first_row * blocks_across + tile.column,
             kWarps * blocks_across};
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
  const KernelTile& tile_;
  Walk walk_;
  uint32_t columns_;
  float amax_[kQuad] = {};
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_TILES_CUDA_H_
