// NVFP4_2D is encoded when the amax over all ranks is known, from the master alone. A warp has 16 rows of 128 columns,
// a lane four columns of them in registers: eight blocks side by side, four lanes to a block.

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/scale_math.h"
#include "kernels/optim/device_kernel.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {
namespace {

constexpr MatrixShape kTileShape = GpuFormatOf(Format::kNVFP4_2D).late_tile_shape;
constexpr int kBlockSize = 16;
constexpr int kBlockLanes = kBlockSize / kQuad;

// A lane's elements; elements beyond the matrix are 0.
using Rows = float[kBlockSize][kQuad];

__device__ __forceinline__ void Load(const float* first, int64_t stride, int rows, int columns, bool aligned,
                                     Rows& values) {
  const bool whole = aligned && columns == kQuad;
#pragma unroll
  for (int row = 0; row < kBlockSize; ++row) {
    const float* const source = first + row * stride;
    Quad<float> quad = {};
    if (row < rows && whole) {
      quad = *reinterpret_cast<const Quad<float>*>(source);
    } else if (row < rows) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) quad.values[j] = j < columns ? source[j] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) values[row][j] = quad.values[j];
  }
}

__device__ __forceinline__ float AmaxOfBlock(const Rows& values) {
  float amax = 0.0f;
#pragma unroll
  for (int row = 0; row < kBlockSize; ++row) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) amax = fmaxf(amax, fabsf(values[row][j]));
  }
#pragma unroll
  for (int distance = 1; distance < kBlockLanes; distance *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, distance));
  }
  return amax;
}

// Four codes, the first in the lowest four bits.
__device__ __forceinline__ uint32_t EncodeQuad(const float (&values)[kQuad], float multiplier) {
  uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) codes |= uint32_t{E2M1::Encode(values[j] * multiplier)} << (4 * j);
  return codes;
}

__device__ __forceinline__ void Store(uint32_t codes, int columns, bool aligned, uint8_t* target) {
  if (columns > 2 && aligned) return StoreGlobal(static_cast<uint16_t>(codes), target);
  StoreGlobal(static_cast<uint8_t>(codes), target);
  if (columns > 2) StoreGlobal(static_cast<uint8_t>(codes >> 8), target + 1);
}

__global__ __launch_bounds__(kThreads, 2) void EncodeKernel(KernelLaunch launch) {
  const KernelTile tile = launch.tiles[blockIdx.x];
  const DeviceExtent& extent = launch.extents[tile.extent];
  if (extent.row_wise.data == nullptr) return;
  const int64_t row = tile.row * kTileShape.rows;
  const int64_t column = tile.column * kTileShape.cols + static_cast<int>(threadIdx.x) * kQuad;
  const int rows = RowsUpTo(kBlockSize, extent.rows - row, 1);
  const int columns = RowsUpTo(kQuad, extent.columns - column, 1);
  const bool aligned =
      extent.columns % kQuad == 0 && reinterpret_cast<uintptr_t>(extent.master) % sizeof(Quad<float>) == 0;
  Rows values;
  Load(Moved(extent.master, launch.position) + row * extent.columns + column, extent.columns, rows, columns, aligned,
       values);

  const float tensor_scale = launch.scalings[tile.extent].multiplier;
  const uint8_t scale = ComputeNvfp4BlockScale(AmaxOfBlock(values), tensor_scale);
  const float multiplier = Nvfp4EncodeMultiplier(scale, tensor_scale);
  // Lanes stay until here because the amax is a reduction over several lanes.
  if (columns == 0) return;
  if (Lane() % kBlockLanes == 0) {
    const int64_t blocks_across = (extent.columns + kBlockSize - 1) / kBlockSize;
    StoreGlobal(scale, extent.row_wise.scales + tile.row * blocks_across + column / kBlockSize);
  }
  const int64_t pairs = (extent.columns + 1) / 2;
  uint8_t* const first = extent.row_wise.data + row * pairs + column / 2;
  const bool aligned_pairs = pairs % 2 == 0 && reinterpret_cast<uintptr_t>(first) % 2 == 0;
#pragma unroll
  for (int r = 0; r < kBlockSize; ++r) {
    if (r < rows) Store(EncodeQuad(values[r], multiplier), columns, aligned_pairs, first + r * pairs);
  }
}

}  // namespace

DeviceKernel Nvfp4EncodeKernel() { return {EncodeKernel, 0}; }

}  // namespace paramshard::gpu
