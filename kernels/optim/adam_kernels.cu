// One block of 256 threads works on one tile. A thread owns four elements of each of 8 or 16 rows, and is alone with them: it
// copies them into shared memory some rows ahead (cp.async, which takes no registers), updates them, stores the new state and
// keeps the new master in shared memory. What crosses threads are the amaxes: within a warp while rows pass, and once per
// tile between warps, before what waits for them is encoded. Two or three blocks fit a multiprocessor; while one starts or
// ends, the others keep memory busy. Where rows do not begin at aligned addresses, the update takes the elements as they lie
// in memory, and the encoding is a second part of its own (shifted_tiles_cuda.h).

#include "kernels/optim/adam_kernels.h"

#include <algorithm>
#include <type_traits>

#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float8.h"
#include "kernels/optim/shifted_tiles_cuda.h"
#include "kernels/optim/tile_memory_cuda.h"
#include "kernels/optim/tiles_cuda.h"

namespace paramshard::gpu {
namespace {

// How a moment is read and stored.
struct FloatMoment {
  using Stored = float;
  __device__ static float Load(Stored stored) { return stored; }
  __device__ static Quad<Stored> Store(const float (&values)[kQuad]) {
    return {{values[0], values[1], values[2], values[3]}};
  }
};

struct BFloat16Moment {
  using Stored = uint16_t;
  __device__ static float Load(Stored stored) { return DecodeBFloat16(stored); }
  __device__ static Quad<Stored> Store(const float (&values)[kQuad]) { return EncodeBFloat16Quad(values); }
};

// Moves the rows of one tile through shared memory and updates them.
template <typename Access, typename ExpAvg, typename ExpAvgSq, int kSharedBytes>
class StepRows {
 public:
  __device__ StepRows(const DeviceExtent& extent, const AdamConstants& constants)
      : extent_(extent), constants_(constants) {}

  template <typename TileType>
  __device__ void Run(TileType& tile) {
    // Rows on their way at a time.
    constexpr int kSlots = std::min(
        TileType::kRows, (kSharedBytes - TileType::kRows * kFloatRowBytes - TileType::kExtraBytes) / kSlotBytes);
    const auto& walk = tile.walk();
    uint8_t* const slots = MasterRow(TileType::kRows) + TileType::kExtraBytes;
    // The master has all rows at once, and the first rows of the others come with it.
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int row = slot; row < TileType::kRows; row += kSlots) {
        if (row < walk.rows) FetchMaster(tile, walk.At(row), MasterRow(row));
      }
      if (slot < walk.rows) FetchOthers(tile, walk.At(slot), slots + slot * kSlotBytes);
      CommitCopies();
    }
    auto fetched = walk.At(kSlots);
    auto place = walk.At(0);
    int slot = 0;
#pragma unroll 1
    for (int row = 0; row < walk.rows; ++row) {
      AwaitCopies<kSlots - 1>();
      uint8_t* const others = slots + slot * kSlotBytes;
      Elements elements = Read(place.index, MasterRow(row), others);
      if (row + kSlots < walk.rows) FetchOthers(tile, fetched, others);
      CommitCopies();
      walk.Advance(fetched);
      Update(elements);
      const uint32_t valid = tile.Valid(place);
      Store(elements, place.index, valid, MasterRow(row));
      tile.Visit(place, valid, elements.master.values);
      walk.Advance(place);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    tile.Finish();
  }

 private:
  using First = typename ExpAvg::Stored;
  using Second = typename ExpAvgSq::Stored;

  static constexpr int kGradientBytes = Access::template kRowBytes<float>;
  static constexpr int kFirstBytes = Access::template kRowBytes<First>;
  static constexpr int kSlotBytes = kGradientBytes + kFirstBytes + Access::template kRowBytes<Second>;

  struct Elements {
    Quad<float> master;
    Quad<float> gradient;
    Quad<First> exp_avg;
    Quad<Second> exp_avg_sq;
  };

  __device__ First* exp_avg() const { return static_cast<First*>(extent_.exp_avg); }
  __device__ Second* exp_avg_sq() const { return static_cast<Second*>(extent_.exp_avg_sq); }

  template <typename TileType, typename Place>
  __device__ void FetchMaster(const TileType& tile, const Place& place, uint8_t* row) const {
    Access::Fetch(extent_.master, place.index, tile.Valid(place), row);
  }

  template <typename TileType, typename Place>
  __device__ void FetchOthers(const TileType& tile, const Place& place, uint8_t* slot) const {
    const uint32_t valid = tile.Valid(place);
    Access::Fetch(extent_.gradient, place.index, valid, slot);
    Access::Fetch(exp_avg(), place.index, valid, slot + kGradientBytes);
    Access::Fetch(exp_avg_sq(), place.index, valid, slot + kGradientBytes + kFirstBytes);
  }

  __device__ Elements Read(int64_t index, const uint8_t* master, const uint8_t* slot) const {
    return {Access::Read(extent_.master, index, master), Access::Read(extent_.gradient, index, slot),
            Access::Read(exp_avg(), index, slot + kGradientBytes),
            Access::Read(exp_avg_sq(), index, slot + kGradientBytes + kFirstBytes)};
  }

  __device__ void Update(Elements& elements) const {
    AdamElement updated[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      updated[j] = {elements.master.values[j], ExpAvg::Load(elements.exp_avg.values[j]),
                    ExpAvgSq::Load(elements.exp_avg_sq.values[j])};
    }
    UpdateAdamElements(constants_, elements.gradient.values, updated);
    float first[kQuad];
    float second[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      elements.master.values[j] = updated[j].master;
      first[j] = updated[j].exp_avg;
      second[j] = updated[j].exp_avg_sq;
    }
    elements.exp_avg = ExpAvg::Store(first);
    elements.exp_avg_sq = ExpAvgSq::Store(second);
  }

  __device__ void Store(const Elements& elements, int64_t index, uint32_t valid, uint8_t* master_row) const {
    Access::Keep(elements.master, master_row);
    Access::Store(elements.master, index, valid, extent_.master);
    Access::Store(elements.exp_avg, index, valid, exp_avg());
    Access::Store(elements.exp_avg_sq, index, valid, exp_avg_sq());
  }

  const DeviceExtent& extent_;
  const AdamConstants& constants_;
};

// Brings the master's rows into shared memory, and nothing else.
template <typename Access>
class EncodeRows {
 public:
  explicit __device__ EncodeRows(const DeviceExtent& extent) : extent_(extent) {}

  template <typename TileType>
  __device__ void Run(TileType& tile) {
    const auto& walk = tile.walk();
    for (int row = 0; row < walk.rows; ++row) {
      const auto place = walk.At(row);
      Access::Fetch(extent_.master, place.index, tile.Valid(place), MasterRow(row));
    }
    CommitCopies();
    AwaitCopies<0>();
    for (int row = 0; row < walk.rows; ++row) {
      const auto place = walk.At(row);
      Quad<float> master = Access::Read(extent_.master, place.index, MasterRow(row));
      for (int j = 0; j < kQuad; ++j) master.values[j] = CanonicalNan(master.values[j]);
      Access::Keep(master, MasterRow(row));
      tile.Visit(place, tile.Valid(place), master.values);
    }
    tile.Finish();
  }

 private:
  const DeviceExtent& extent_;
};

template <typename TileType, typename Rows>
__device__ void RunTile(const DeviceExtent& extent, const AdamTile& tile, Rows& rows) {
  TileType walked(extent, tile);
  rows.Run(walked);
}

template <typename Access>
struct TilesOf {
  using Flat = FlatTile<Access>;
  template <typename Element>
  using Mxfp8 = Mxfp8Tile<Access, Element>;
  template <typename Element>
  using Fp8Block = Fp8BlockTile<Access, Element>;
};

template <>
struct TilesOf<ShiftedAccess> {
  using Flat = ShiftedFlatTile;
  template <typename Element>
  using Mxfp8 = ShiftedMxfp8Tile<Element>;
  template <typename Element>
  using Fp8Block = ShiftedFp8BlockTile<Element>;
};

// kLarge: extents of 128 x 128 blocks, or else of MXFP8. Those without scales are in both kinds.
template <typename Access, bool kLarge, typename Rows>
__device__ void RunFormat(const DeviceExtent& extent, const AdamTile& tile, Rows rows) {
  using Tiles = TilesOf<Access>;
  const bool e4m3 = extent.encoding.element == ElementType::kE4M3;
  if (GpuTileShape(extent.encoding.format).rows == 1) {
    RunTile<typename Tiles::Flat>(extent, tile, rows);
  } else if constexpr (kLarge) {
    if (e4m3) return RunTile<typename Tiles::template Fp8Block<E4M3>>(extent, tile, rows);
    RunTile<typename Tiles::template Fp8Block<E5M2>>(extent, tile, rows);
  } else {
    if (e4m3) return RunTile<typename Tiles::template Mxfp8<E4M3>>(extent, tile, rows);
    RunTile<typename Tiles::template Mxfp8<E5M2>>(extent, tile, rows);
  }
}

// How many blocks share a multiprocessor, and what of its shared memory each has, less a little for static arrays.
template <typename Access, bool kLarge>
constexpr int kResidentBlocks = kLarge || std::is_same_v<Access, StridedAccess> ? 2 : 3;
template <typename Access, bool kLarge>
constexpr int kSharedBytes = (kResidentBlocks<Access, kLarge> == 2 ? 112 : 74) * 1024;

template <typename Access, bool kLarge, typename ExpAvg, typename ExpAvgSq>
__global__ __launch_bounds__(kThreads, kResidentBlocks<Access, kLarge>) void AdamStepKernel(AdamLaunch launch) {
  // Copies, which need not be read again after every store.
  const AdamTile tile = launch.tiles[blockIdx.x];
  const DeviceExtent extent = launch.extents[tile.extent];
  const AdamConstants constants = launch.constants[launch.constants_of[tile.extent]];
  using Rows = StepRows<Access, ExpAvg, ExpAvgSq, kSharedBytes<Access, kLarge>>;
  RunFormat<Access, kLarge>(extent, tile, Rows(extent, constants));
}

template <typename Access, bool kLarge>
__global__ __launch_bounds__(kThreads, kResidentBlocks<Access, kLarge>) void AdamEncodeKernel(AdamLaunch launch) {
  const AdamTile tile = launch.tiles[blockIdx.x];
  const DeviceExtent extent = launch.extents[tile.extent];
  RunFormat<Access, kLarge>(extent, tile, EncodeRows<Access>(extent));
}

// A kernel and the dynamic shared memory that it needs.
struct Kernel {
  void (*function)(AdamLaunch);
  int shared_bytes;
};

template <typename Access, bool kLarge, typename ExpAvg>
Kernel StepKernelOf(MomentType exp_avg_sq) {
  constexpr int kShared = kSharedBytes<Access, kLarge>;
  if (exp_avg_sq == MomentType::kFP32) return {AdamStepKernel<Access, kLarge, ExpAvg, FloatMoment>, kShared};
  return {AdamStepKernel<Access, kLarge, ExpAvg, BFloat16Moment>, kShared};
}

template <typename Access, bool kLarge>
Kernel StepKernelOf(const AdamKind& kind) {
  if (kind.exp_avg == MomentType::kFP32) return StepKernelOf<Access, kLarge, FloatMoment>(kind.exp_avg_sq);
  return StepKernelOf<Access, kLarge, BFloat16Moment>(kind.exp_avg_sq);
}

template <typename Access>
Kernel StepKernelOf(const AdamKind& kind) {
  return kind.large ? StepKernelOf<Access, true>(kind) : StepKernelOf<Access, false>(kind);
}

Kernel StepKernelOf(const AdamKind& kind) {
  switch (kind.access) {
    case AdamAccess::kQuads:
      return StepKernelOf<QuadAccess>(kind);
    case AdamAccess::kShifted:
      return StepKernelOf<ShiftedAccess>(kind);
    default:
      return StepKernelOf<StridedAccess>(kind);
  }
}

template <typename Access>
Kernel EncodeKernelOf(bool large) {
  if (large) return {AdamEncodeKernel<Access, true>, kSharedBytes<Access, true>};
  return {AdamEncodeKernel<Access, false>, kSharedBytes<Access, false>};
}

Kernel EncodeKernelOf(const AdamKind& kind) {
  switch (kind.access) {
    case AdamAccess::kQuads:
      return EncodeKernelOf<QuadAccess>(kind.large);
    case AdamAccess::kShifted:
      return EncodeKernelOf<ShiftedAccess>(kind.large);
    default:
      return EncodeKernelOf<StridedAccess>(kind.large);
  }
}

cudaError_t Launch(const Kernel& kernel, const AdamLaunch& launch, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel.function<<<static_cast<unsigned int>(launch.tile_count), kThreads, kernel.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchAdamStep(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream) {
  return Launch(StepKernelOf(kind), launch, stream);
}

cudaError_t LaunchAdamEncode(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream) {
  return Launch(EncodeKernelOf(kind), launch, stream);
}

}  // namespace paramshard::gpu
