#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"
#include "kernels/products/hopper_instructions_cuda.h"
#include "kernels/products/hopper_launch.h"

namespace paramshard::gpu::hopper {
namespace {

// In a block one thread fetches operands, and two warpgroups multiply.
constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroups = kBlockRows / kGroupRows;
constexpr int kThreads = (1 + kGroups) * kWarpgroup;
constexpr int kTermsOfInstruction = 16;

// Shared memory: operands of several stages, and a warpgroup's part of the addend and then of the result.
constexpr int kStages = 3;
constexpr uint32_t kHalfBytes = kBlockRows * kTerms * 2;  // of the left operand, or of half the right one
constexpr uint32_t kStageBytes = 3 * kHalfBytes;
constexpr uint32_t kSquareBytes = kBoxWidth * kBoxWidth * 2;
constexpr uint32_t kSquares = kTileColumns / kBoxWidth;
constexpr uint32_t kPartBytes = kSquares * kSquareBytes;
constexpr uint32_t kAlignment = 1024;  // of swizzled boxes
constexpr uint32_t kSharedBytes = kStages * kStageBytes + kGroups * kPartBytes + kAlignment;

// A stage of the operands, and the parity of its barriers' phase.
struct Stage {
  uint32_t index = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++index < kStages) return;
    index = 0;
    parity ^= 1;
  }
};

struct Barriers {
  uint64_t filled[kStages];
  uint64_t emptied[kStages];
  uint64_t addend[kGroups];
};

// A tile's product, and this block's place in it.
struct Place {
  __device__ Place(const Launch& launch, uint32_t index, uint32_t rank)
      : product(launch.products[launch.tiles[index] >> (2 * kCoordinateBits)]) {
    constexpr uint64_t kMask = (uint64_t{1} << kCoordinateBits) - 1;
    const uint64_t packed = launch.tiles[index];
    const auto tile_row = static_cast<int32_t>(packed >> kCoordinateBits & kMask);
    const auto tile_column = static_cast<int32_t>(packed & kMask);
    row = tile_row * kTileRows + static_cast<int32_t>(rank) * kBlockRows;
    column = tile_column * kTileColumns;
    has_mirror = product.is_symmetric && tile_row != tile_column;
  }

  const DeviceProduct& product;
  int32_t row;
  int32_t column;
  bool has_mirror;
};

// Fetches the operands of all tiles. One thread.
__device__ void Fetch(const Launch& launch, uint32_t begin, uint32_t end, uint32_t rank, uint32_t stages,
                      const Barriers& barriers) {
  constexpr uint16_t kAllRanks = (1u << kClusterBlocks) - 1;
  Stage stage;
  for (uint32_t i = begin; i < end; ++i) {
    const Place place(launch, i, rank);
    const DeviceProduct& product = place.product;
    const int32_t half_column = place.column + static_cast<int32_t>(rank) * kBlockRows;
    for (int32_t s = 0; s < product.stages; ++s) {
      const uint32_t filled = SharedAddress(&barriers.filled[stage.index]);
      const uint32_t left = stages + stage.index * kStageBytes;
      const uint32_t right = left + (1 + rank) * kHalfBytes;
      AwaitBarrier(SharedAddress(&barriers.emptied[stage.index]), stage.parity ^ 1);
      ArriveExpecting(filled, kStageBytes);
      const int32_t term = s * kTerms;
      if (product.left_is_transposed) {
        LoadBox(product.left, place.row, term, left, filled);
        LoadBox(product.left, place.row + kBoxWidth, term, left + kSquareBytes, filled);
      } else {
        LoadBox(product.left, term, place.row, left, filled);
      }
      if (product.right_is_transposed) {
        LoadBoxForCluster(product.right, half_column, term, right, filled, kAllRanks);
        LoadBoxForCluster(product.right, half_column + kBoxWidth, term, right + kSquareBytes, filled, kAllRanks);
      } else {
        LoadBoxForCluster(product.right, term, half_column, right, filled, kAllRanks);
      }
      stage.Advance();
    }
  }
}

// Lets all blocks that wrote the stage write it again.
__device__ __forceinline__ void Release(const Barriers& barriers, uint32_t index) {
  const uint32_t thread = threadIdx.x % kWarpgroup;
  if (thread < kClusterBlocks) ArriveAt(SharedAddress(&barriers.emptied[index]), thread);
}

// Sums all terms of this warpgroup's part of a tile.
template <bool kLeftIsTransposed, bool kRightIsTransposed>
__device__ __forceinline__ void Sum(int32_t count, uint32_t group, uint32_t stages, const Barriers& barriers,
                                    Stage& stage, float (&sums)[128]) {
  constexpr uint32_t kLeftBytes = kLeftIsTransposed ? kSquareBytes : kGroupRows * kBoxWidth * 2;
  constexpr uint64_t kLeftStep =
      (kLeftIsTransposed ? kTermsOfInstruction * kBoxWidth * 2 : kTermsOfInstruction * 2) >> 4;
  constexpr uint64_t kRightStep =
      (kRightIsTransposed ? kTermsOfInstruction * kBoxWidth * 2 : kTermsOfInstruction * 2) >> 4;
  FenceRegisters(sums);
  for (int32_t s = 0; s < count; ++s) {
    AwaitBarrier(SharedAddress(&barriers.filled[stage.index]), stage.parity);
    const uint32_t address = stages + stage.index * kStageBytes;
    const uint64_t left = DescribeOperand(address + group * kLeftBytes, kLeftIsTransposed ? kSquareBytes : 0);
    const uint64_t right = DescribeOperand(address + kHalfBytes, kRightIsTransposed ? kSquareBytes : 0);
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kTerms / kTermsOfInstruction; ++i) {
      Multiply64x256x16<kLeftIsTransposed, kRightIsTransposed>(sums, left + i * kLeftStep, right + i * kRightStep,
                                                               s > 0 || i > 0);
    }
    CommitProducts();
    AwaitProducts<0>();
    Release(barriers, stage.index);
    stage.Advance();
  }
  FenceRegisters(sums);
}

__device__ __forceinline__ uint32_t PairOf(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ __forceinline__ float FirstOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float SecondOf(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Address of chunk `chunk` of row `row` in the squares at `part`: 16 bytes.
__device__ __forceinline__ uint32_t ChunkAddress(uint32_t part, uint32_t row, uint32_t chunk) {
  constexpr uint32_t kChunks = kBoxWidth / 8;
  return part + chunk / kChunks * kSquareBytes + row * (kBoxWidth * 2) + ((chunk % kChunks ^ row % 8) << 4);
}

// Adds the addend, which lies at `part`, rounds, and leaves the result there, row by row. Returns pairs of the result.
__device__ __forceinline__ void Finish(const DeviceProduct& product, uint32_t part, const float (&sums)[128],
                                       uint32_t (&pairs)[64]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x % kWarpgroup / 32;
  const uint32_t row = warp * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const float factor = product.factor;
  const float addend_factor = product.addend_factor;
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const uint32_t address = ChunkAddress(part, row, j + lane / 16);
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = factor * sums[4 * j + i];
    if (addend_factor != 0) {
      uint32_t addend[4];
      LoadMatrices(address, addend);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[2 * i] += addend_factor * FirstOf(addend[i]);
        values[2 * i + 1] += addend_factor * SecondOf(addend[i]);
      }
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[2 * j + i] = PairOf(values[2 * i], values[2 * i + 1]);
    StoreMatrices(address, pairs[2 * j], pairs[2 * j + 1], pairs[2 * j + 2], pairs[2 * j + 3]);
  }
}

// Leaves the transpose of the result at `part`: squares of 64 columns of the result.
__device__ __forceinline__ void Transpose(uint32_t part, const uint32_t (&pairs)[64]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x % kWarpgroup / 32;
  const uint32_t chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const uint32_t column = 8 * (j + lane / 16) + lane % 8;
    const uint32_t square = part + column / kBoxWidth * kSquareBytes;
    StoreTransposes(ChunkAddress(square, column % kBoxWidth, chunk), pairs[2 * j], pairs[2 * j + 1], pairs[2 * j + 2],
                    pairs[2 * j + 3]);
  }
}

// Multiplies this warpgroup's part of all tiles.
__device__ void Multiply(const Launch& launch, uint32_t begin, uint32_t end, uint32_t rank, uint32_t stages,
                         const Barriers& barriers) {
  const uint32_t group = threadIdx.x / kWarpgroup - 1;
  const uint32_t part = stages + kStages * kStageBytes + group * kPartBytes;
  const uint32_t addend_barrier = SharedAddress(&barriers.addend[group]);
  const bool is_first = threadIdx.x % kWarpgroup == 0;
  const uint32_t sync_id = 1 + group;
  uint32_t addend_parity = 0;
  Stage stage;
  for (uint32_t i = begin; i < end; ++i) {
    const Place place(launch, i, rank);
    const DeviceProduct& product = place.product;
    const int32_t row = place.row + static_cast<int32_t>(group) * kGroupRows;
    const bool has_addend = product.addend_factor != 0;
    if (is_first) {
      AwaitStoresRead();
      if (has_addend) {
        ArriveExpecting(addend_barrier, kPartBytes);
        for (uint32_t s = 0; s < kSquares; ++s) {
          LoadBox(product.addend, place.column + static_cast<int32_t>(s) * kBoxWidth, row, part + s * kSquareBytes,
                  addend_barrier);
        }
      }
    }
    __syncwarp();
    float sums[128];
    if (product.left_is_transposed) {
      Sum<true, true>(product.stages, group, stages, barriers, stage, sums);
    } else if (product.right_is_transposed) {
      Sum<false, true>(product.stages, group, stages, barriers, stage, sums);
    } else {
      Sum<false, false>(product.stages, group, stages, barriers, stage, sums);
    }
    if (has_addend) {
      AwaitBarrier(addend_barrier, addend_parity);
      addend_parity ^= 1;
    }
    SyncWarpgroup(sync_id);
    uint32_t pairs[64];
    Finish(product, part, sums, pairs);
    FenceForStores();
    SyncWarpgroup(sync_id);
    if (is_first) {
      for (uint32_t s = 0; s < kSquares; ++s) {
        StoreBox(product.result, place.column + static_cast<int32_t>(s) * kBoxWidth, row, part + s * kSquareBytes);
      }
      CommitStores();
    }
    if (place.has_mirror) {
      if (is_first) AwaitStoresRead();
      SyncWarpgroup(sync_id);
      Transpose(part, pairs);
      FenceForStores();
      SyncWarpgroup(sync_id);
      if (is_first) {
        for (uint32_t s = 0; s < kSquares; ++s) {
          StoreBox(product.result, row, place.column + static_cast<int32_t>(s) * kBoxWidth, part + s * kSquareBytes);
        }
        CommitStores();
      }
    }
    __syncwarp();
  }
  if (is_first) AwaitStores();
}

__global__ void __cluster_dims__(kClusterBlocks) __launch_bounds__(kThreads, 1)
    MultiplyKernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint8_t shared[];
  __shared__ Barriers barriers;
  const uint32_t stages = (SharedAddress(shared) + kAlignment - 1) / kAlignment * kAlignment;
  const uint32_t rank = RankInCluster();
  const uint32_t worker = blockIdx.x / kClusterBlocks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&barriers.filled[i]), 1);
      InitBarrier(SharedAddress(&barriers.emptied[i]), kGroups * kClusterBlocks);
    }
    for (int i = 0; i < kGroups; ++i) InitBarrier(SharedAddress(&barriers.addend[i]), 1);
    FenceBarrierInit();
  }
  __syncthreads();
  SyncCluster();
  const uint32_t begin = launch.first_tiles[worker];
  const uint32_t end = launch.first_tiles[worker + 1];
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<32>();
    if (threadIdx.x == 0) Fetch(launch, begin, end, rank, stages, barriers);
  } else {
    TakeRegisters<232>();
    Multiply(launch, begin, end, rank, stages, barriers);
  }
  // A block that ended could not be written to.
  SyncCluster();
}

}  // namespace

absl::StatusOr<int> CountWorkers() {
  RETURN_IF_ERROR(ToStatus(
      cudaFuncSetAttribute(MultiplyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "multiply"));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kClusterBlocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int workers = 0;
  RETURN_IF_ERROR(ToStatus(cudaOccupancyMaxActiveClusters(&workers, MultiplyKernel, &config), "count clusters"));
  return std::clamp(workers, 1, kMostWorkers);
}

absl::Status Enqueue(const Launch& launch, int workers, cudaStream_t stream) {
  MultiplyKernel<<<static_cast<unsigned>(workers * kClusterBlocks), kThreads, kSharedBytes, stream>>>(launch);
  return LaunchStatus("multiply matrices");
}

}  // namespace paramshard::gpu::hopper
