#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/products/hopper_instructions_cuda.h"
#include "kernels/products/hopper_products.h"
#include "kernels/products/tile_schedule.h"

namespace paramshard::gpu {
namespace {

// A cluster of two blocks makes tiles of 256 x 256 elements: each block has the operand of its own 128 rows, and half of
// that of all columns, which both receive. In a block one thread fetches operands, and two warpgroups multiply.
constexpr int kClusterBlocks = 2;
constexpr int kBlockRows = 128;
constexpr int kTileRows = kClusterBlocks * kBlockRows;
constexpr int kTileColumns = 256;
constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroups = kBlockRows / kGroupRows;
constexpr int kThreads = (1 + kGroups) * hopper::kWarpgroup;

// Elements of BF16 in 128 bytes, which is the width of all boxes; and terms of one stage.
constexpr int kBoxWidth = 64;
constexpr int kTerms = kBoxWidth;
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

struct DeviceProduct {
  CUtensorMap left, right;      // boxes of operands
  CUtensorMap addend, result;  // squares
  int32_t stages;
  float factor;
  float addend_factor;
  bool left_is_transposed;   // rows of its boxes are terms
  bool right_is_transposed;
  bool is_symmetric;
};

// A worker is a cluster. Kernel parameters: no memory has to live as long as the launch.
constexpr int kMostProducts = 12;
constexpr int kMostTiles = 2048;
constexpr int kMostWorkers = 128;
struct Launch {
  DeviceProduct products[kMostProducts];
  uint32_t tiles[kMostTiles];  // by worker
  uint16_t first_tiles[kMostWorkers + 1];
};
static_assert(sizeof(Launch) <= 32764, "more than the parameters of a kernel");

constexpr int kCoordinateBits = 13;
constexpr uint32_t kCoordinateMask = (1u << kCoordinateBits) - 1;
uint32_t Packed(const Tile& tile) {
  return static_cast<uint32_t>(tile.grid) << (2 * kCoordinateBits) | static_cast<uint32_t>(tile.row) << kCoordinateBits |
         static_cast<uint32_t>(tile.column);
}

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

// What a tile's product and place are, for this block.
struct Place {
  __device__ Place(const Launch& launch, uint32_t index, uint32_t rank)
      : product(launch.products[launch.tiles[index] >> (2 * kCoordinateBits)]) {
    const uint32_t packed = launch.tiles[index];
    const auto tile_row = static_cast<int32_t>(packed >> kCoordinateBits & kCoordinateMask);
    const auto tile_column = static_cast<int32_t>(packed & kCoordinateMask);
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
      const uint32_t filled = hopper::SharedAddress(&barriers.filled[stage.index]);
      const uint32_t left = stages + stage.index * kStageBytes;
      const uint32_t right = left + (1 + rank) * kHalfBytes;
      hopper::AwaitBarrier(hopper::SharedAddress(&barriers.emptied[stage.index]), stage.parity ^ 1);
      hopper::ArriveExpecting(filled, kStageBytes);
      const int32_t term = s * kTerms;
      if (product.left_is_transposed) {
        hopper::LoadBox(product.left, place.row, term, left, filled);
        hopper::LoadBox(product.left, place.row + kBoxWidth, term, left + kSquareBytes, filled);
      } else {
        hopper::LoadBox(product.left, term, place.row, left, filled);
      }
      if (product.right_is_transposed) {
        hopper::LoadBoxForCluster(product.right, half_column, term, right, filled, kAllRanks);
        hopper::LoadBoxForCluster(product.right, half_column + kBoxWidth, term, right + kSquareBytes, filled, kAllRanks);
      } else {
        hopper::LoadBoxForCluster(product.right, term, half_column, right, filled, kAllRanks);
      }
      stage.Advance();
    }
  }
}

// Lets all blocks that wrote the stage write it again.
__device__ __forceinline__ void Release(const Barriers& barriers, uint32_t index) {
  const uint32_t thread = threadIdx.x % hopper::kWarpgroup;
  if (thread < kClusterBlocks) hopper::ArriveAt(hopper::SharedAddress(&barriers.emptied[index]), thread);
}

// Sums all terms of this warpgroup's part of a tile.
template <bool kLeftIsTransposed, bool kRightIsTransposed>
__device__ __forceinline__ void Sum(int32_t count, uint32_t group, uint32_t stages, const Barriers& barriers,
                                    Stage& stage, float (&sums)[128]) {
  constexpr uint32_t kLeftBytes = kLeftIsTransposed ? kSquareBytes : kGroupRows * kBoxWidth * 2;
  constexpr uint64_t kLeftStep = (kLeftIsTransposed ? kTermsOfInstruction * kBoxWidth * 2 : kTermsOfInstruction * 2) >> 4;
  constexpr uint64_t kRightStep =
      (kRightIsTransposed ? kTermsOfInstruction * kBoxWidth * 2 : kTermsOfInstruction * 2) >> 4;
  uint32_t before = 0;
  hopper::FenceRegisters(sums);
  for (int32_t s = 0; s < count; ++s) {
    hopper::AwaitBarrier(hopper::SharedAddress(&barriers.filled[stage.index]), stage.parity);
    const uint32_t address = stages + stage.index * kStageBytes;
    const uint64_t left = hopper::DescribeOperand(address + group * kLeftBytes, kLeftIsTransposed ? kSquareBytes : 0);
    const uint64_t right = hopper::DescribeOperand(address + kHalfBytes, kRightIsTransposed ? kSquareBytes : 0);
    hopper::BeginProducts();
#pragma unroll
    for (int i = 0; i < kTerms / kTermsOfInstruction; ++i) {
      hopper::Multiply64x256x16<kLeftIsTransposed, kRightIsTransposed>(sums, left + i * kLeftStep,
                                                                       right + i * kRightStep, s > 0 || i > 0);
    }
    hopper::CommitProducts();
    hopper::AwaitProducts<1>();
    if (s > 0) Release(barriers, before);
    before = stage.index;
    stage.Advance();
  }
  hopper::AwaitProducts<0>();
  hopper::FenceRegisters(sums);
  Release(barriers, before);
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
  const uint32_t warp = threadIdx.x % hopper::kWarpgroup / 32;
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
      hopper::LoadMatrices(address, addend);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[2 * i] += addend_factor * FirstOf(addend[i]);
        values[2 * i + 1] += addend_factor * SecondOf(addend[i]);
      }
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[2 * j + i] = PairOf(values[2 * i], values[2 * i + 1]);
    hopper::StoreMatrices(address, pairs[2 * j], pairs[2 * j + 1], pairs[2 * j + 2], pairs[2 * j + 3]);
  }
}

// Leaves the transpose of the result at `part`: squares of 64 columns of the result.
__device__ __forceinline__ void Transpose(uint32_t part, const uint32_t (&pairs)[64]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x % hopper::kWarpgroup / 32;
  const uint32_t chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const uint32_t column = 8 * (j + lane / 16) + lane % 8;
    const uint32_t square = part + column / kBoxWidth * kSquareBytes;
    hopper::StoreTransposes(ChunkAddress(square, column % kBoxWidth, chunk), pairs[2 * j], pairs[2 * j + 1],
                            pairs[2 * j + 2], pairs[2 * j + 3]);
  }
}

// Multiplies this warpgroup's part of all tiles.
__device__ void Multiply(const Launch& launch, uint32_t begin, uint32_t end, uint32_t rank, uint32_t stages,
                         const Barriers& barriers) {
  const uint32_t group = threadIdx.x / hopper::kWarpgroup - 1;
  const uint32_t part = stages + kStages * kStageBytes + group * kPartBytes;
  const uint32_t addend_barrier = hopper::SharedAddress(&barriers.addend[group]);
  const bool is_first = threadIdx.x % hopper::kWarpgroup == 0;
  const uint32_t sync_id = 1 + group;
  uint32_t addend_parity = 0;
  Stage stage;
  for (uint32_t i = begin; i < end; ++i) {
    const Place place(launch, i, rank);
    const DeviceProduct& product = place.product;
    const int32_t row = place.row + static_cast<int32_t>(group) * kGroupRows;
    const bool has_addend = product.addend_factor != 0;
    if (is_first) {
      hopper::AwaitStoresRead();
      if (has_addend) {
        hopper::ArriveExpecting(addend_barrier, kPartBytes);
        for (uint32_t s = 0; s < kSquares; ++s) {
          hopper::LoadBox(product.addend, place.column + static_cast<int32_t>(s) * kBoxWidth, row,
                          part + s * kSquareBytes, addend_barrier);
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
      hopper::AwaitBarrier(addend_barrier, addend_parity);
      addend_parity ^= 1;
    }
    hopper::SyncWarpgroup(sync_id);
    uint32_t pairs[64];
    Finish(product, part, sums, pairs);
    hopper::FenceForStores();
    hopper::SyncWarpgroup(sync_id);
    if (is_first) {
      for (uint32_t s = 0; s < kSquares; ++s) {
        hopper::StoreBox(product.result, place.column + static_cast<int32_t>(s) * kBoxWidth, row,
                         part + s * kSquareBytes);
      }
      hopper::CommitStores();
    }
    if (place.has_mirror) {
      if (is_first) hopper::AwaitStoresRead();
      hopper::SyncWarpgroup(sync_id);
      Transpose(part, pairs);
      hopper::FenceForStores();
      hopper::SyncWarpgroup(sync_id);
      if (is_first) {
        for (uint32_t s = 0; s < kSquares; ++s) {
          hopper::StoreBox(product.result, row, place.column + static_cast<int32_t>(s) * kBoxWidth,
                           part + s * kSquareBytes);
        }
        hopper::CommitStores();
      }
    }
    __syncwarp();
  }
  if (is_first) hopper::AwaitStores();
}

__global__ void __cluster_dims__(kClusterBlocks) __launch_bounds__(kThreads, 1)
    MultiplyKernel(const __grid_constant__ Launch launch) {
  extern __shared__ uint8_t shared[];
  __shared__ Barriers barriers;
  const uint32_t stages = (hopper::SharedAddress(shared) + kAlignment - 1) / kAlignment * kAlignment;
  const uint32_t rank = hopper::RankInCluster();
  const uint32_t worker = blockIdx.x / kClusterBlocks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::InitBarrier(hopper::SharedAddress(&barriers.filled[i]), 1);
      hopper::InitBarrier(hopper::SharedAddress(&barriers.emptied[i]), kGroups * kClusterBlocks);
    }
    for (int i = 0; i < kGroups; ++i) hopper::InitBarrier(hopper::SharedAddress(&barriers.addend[i]), 1);
    hopper::FenceBarrierInit();
  }
  __syncthreads();
  hopper::SyncCluster();
  const uint32_t begin = launch.first_tiles[worker];
  const uint32_t end = launch.first_tiles[worker + 1];
  if (threadIdx.x < hopper::kWarpgroup) {
    hopper::GiveRegisters<32>();
    if (threadIdx.x == 0) Fetch(launch, begin, end, rank, stages, barriers);
  } else {
    hopper::TakeRegisters<232>();
    Multiply(launch, begin, end, rank, stages, barriers);
  }
  // A block that ended could not be written to.
  hopper::SyncCluster();
}

// Rows of an operand as it is stored.
struct StoredShape {
  int64_t rows;
  int64_t columns;
};

class HopperProducts final : public MatrixProducts {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(int device) {
    const DeviceScope scope(device);
    cudaDeviceProp properties;
    RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "ask for properties"));
    if (properties.major != 9 || properties.minor != 0) {
      return absl::UnimplementedError(absl::StrCat("products: want a GPU of compute capability 9.0, got ",
                                                   properties.major, ".", properties.minor));
    }
    RETURN_IF_ERROR(ToStatus(
        cudaFuncSetAttribute(MultiplyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "products"));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kClusterBlocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kClusterBlocks, 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
    int workers = 0;
    RETURN_IF_ERROR(ToStatus(cudaOccupancyMaxActiveClusters(&workers, MultiplyKernel, &config), "count clusters"));
    ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
    return std::unique_ptr<MatrixProducts>(new HopperProducts(device, std::clamp(workers, 1, kMostWorkers), *driver));
  }

  absl::Status Enqueue(absl::Span<const MatrixProduct> products, cudaStream_t stream) override {
    const DeviceScope scope(device_);
    while (!products.empty()) {
      const size_t count = std::min<size_t>(products.size(), kMostProducts);
      RETURN_IF_ERROR(EnqueueSome(products.first(count), stream));
      products.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  std::string description() const override { return "products of compute capability 9.0, version 1"; }

 private:
  HopperProducts(int device, int workers, const Driver& driver)
      : device_(device), workers_(workers), driver_(driver) {}

  absl::Status EnqueueSome(absl::Span<const MatrixProduct> products, cudaStream_t stream) {
    std::vector<TileGrid> grids;
    for (size_t i = 0; i < products.size(); ++i) {
      const MatrixProduct& product = products[i];
      RETURN_IF_ERROR(Describe(product, launch_.products[i]));
      grids.push_back({(product.rows + kTileRows - 1) / kTileRows, (product.columns + kTileColumns - 1) / kTileColumns,
                       launch_.products[i].stages + kStagesOfResult, product.is_symmetric});
    }
    const std::vector<Tile> tiles = TilesOf(grids);
    for (size_t first = 0; first < tiles.size(); first += kMostTiles) {
      const absl::Span<const Tile> some = absl::MakeConstSpan(tiles).subspan(first, kMostTiles);
      const int workers = static_cast<int>(std::min<size_t>(some.size(), workers_));
      const std::vector<std::vector<Tile>> assigned = AssignTiles(grids, some, workers);
      uint16_t next = 0;
      for (int worker = 0; worker < workers; ++worker) {
        launch_.first_tiles[worker] = next;
        for (const Tile& tile : assigned[worker]) launch_.tiles[next++] = Packed(tile);
      }
      launch_.first_tiles[workers] = next;
      MultiplyKernel<<<static_cast<unsigned>(workers * kClusterBlocks), kThreads, kSharedBytes, stream>>>(launch_);
      RETURN_IF_ERROR(LaunchStatus("multiply matrices"));
    }
    return absl::OkStatus();
  }

  absl::Status Describe(const MatrixProduct& product, DeviceProduct& made) const {
    made.stages = static_cast<int32_t>((product.terms + kTerms - 1) / kTerms);
    made.factor = product.factor;
    made.addend_factor = product.addend_factor;
    // Rows of a box are terms where the terms of an element do not follow each other.
    made.left_is_transposed = product.left.is_transposed;
    made.right_is_transposed = !product.right.is_transposed;
    made.is_symmetric = product.is_symmetric;
    if (made.left_is_transposed && !made.right_is_transposed) {
      return absl::UnimplementedError("products: want terms that follow each other in one operand, or in both");
    }
    const StoredShape left = {product.rows, product.terms};
    const StoredShape right = {product.columns, product.terms};
    const StoredShape result = {product.rows, product.columns};
    RETURN_IF_ERROR(DescribeOperand(product.left, left, made.left_is_transposed, made.left));
    RETURN_IF_ERROR(DescribeOperand(product.right, right, made.right_is_transposed, made.right));
    RETURN_IF_ERROR(Map(product.result, result, kBoxWidth, made.result));
    return product.addend_factor == 0 ? absl::OkStatus() : Map(product.addend, result, kBoxWidth, made.addend);
  }

  absl::Status DescribeOperand(const Operand& operand, StoredShape shape, bool is_transposed, CUtensorMap& map) const {
    if (is_transposed) std::swap(shape.rows, shape.columns);
    return Map(operand, shape, is_transposed ? kTerms : kBlockRows, map);
  }

  // Describes boxes of `box_rows`.
  absl::Status Map(const Operand& operand, const StoredShape& shape, uint32_t box_rows, CUtensorMap& map) const {
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(shape.columns), static_cast<cuuint64_t>(shape.rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(operand.stride) * sizeof(uint16_t)};
    const cuuint32_t box[] = {kBoxWidth, box_rows};
    const cuuint32_t steps[] = {1, 1};
    return ToStatus(driver_.tensor_map_encode_tiled(
                        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, operand.data, sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                    "describe a matrix");
  }

  // Time of a tile besides its terms, in stages.
  static constexpr int64_t kStagesOfResult = 4;

  // Constant after construction.
  const int device_;
  const int workers_;
  const Driver& driver_;

  Launch launch_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeHopperProducts(int device) { return HopperProducts::Create(device); }

}  // namespace paramshard::gpu
