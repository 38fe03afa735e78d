// The kernels of the fused step, as templates: each source that includes this compiles the kernels of one access.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_STEP_ROWS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_STEP_ROWS_CUDA_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/base/float_bits.h"
#include "kernels/formats/float8.h"
#include "kernels/optim/device_kernel.h"
#include "kernels/optim/elements_cuda.h"
#include "kernels/optim/master_rows_cuda.h"
#include "kernels/optim/moment_rows_cuda.h"
#include "kernels/optim/moment_set_cuda.h"
#include "kernels/optim/shifted_tiles_cuda.h"
#include "kernels/optim/step_kernels.h"
#include "kernels/optim/tile_memory_cuda.h"
#include "kernels/optim/tiles_cuda.h"

namespace paramshard::gpu {

// The gradients of an extent.
template <typename Access, KernelGradients kType>
class GradientRows {
 public:
  using Casts = MomentCasts<kType == KernelGradients::kFP32 ? KernelMoments::kFP32 : KernelMoments::kBF16>;
  using Stored = typename Casts::Stored;

  static constexpr int kSlotBytes = Access::template kRowBytes<Stored>;

  explicit __device__ GradientRows(const ConstGradient& gradient) : data_(static_cast<const Stored*>(gradient.data)) {}

  __device__ void Fetch(int64_t index, uint32_t valid, uint8_t* slot) const {
    Access::Fetch(data_, index, valid, slot);
  }
  __device__ void Read(int64_t index, const uint8_t* slot, float (&values)[kQuad]) const {
    Casts::Decode(Access::Read(data_, index, slot), values);
  }

 private:
  const Stored* data_;
};

// Gradients whose type is known when the kernel runs. The same for all threads.
template <typename Access>
class GradientRows<Access, KernelGradients::kAny> {
 public:
  static constexpr int kSlotBytes = Access::template kRowBytes<float>;

  explicit __device__ GradientRows(const ConstGradient& gradient) : gradient_(gradient) {}

  __device__ void Fetch(int64_t index, uint32_t valid, uint8_t* slot) const {
    WithType([&](const auto& rows) { rows.Fetch(index, valid, slot); });
  }
  __device__ void Read(int64_t index, const uint8_t* slot, float (&values)[kQuad]) const {
    WithType([&](const auto& rows) { rows.Read(index, slot, values); });
  }

 private:
  template <typename Function>
  __device__ void WithType(const Function& function) const {
    switch (gradient_.type) {
      case GradientType::kFP32:
        return function(GradientRows<Access, KernelGradients::kFP32>(gradient_));
      case GradientType::kBF16:
        return function(GradientRows<Access, KernelGradients::kBF16>(gradient_));
    }
  }

  const ConstGradient& gradient_;
};

// Moves the rows of one tile through shared memory and updates them by the policy.
template <typename Policy, typename Access, KernelMoments kMoments, KernelGradients kGradients, int kSharedBytes>
class StepRows {
 public:
  __device__ StepRows(const DeviceExtent& extent, const StepConstants& constants, int64_t distance)
      : extent_(extent),
        constants_(constants),
        gradients_(extent.gradient),
        moments_(extent.moments),
        distance_(distance) {}

  template <typename TileType>
  __device__ void Run(TileType& tile) {
    using Masters = std::conditional_t<TileType::kSplitMaster, SplitMasters<Access>, FloatMasters<Access>>;
    constexpr int kRows = TileType::kRows;
    // Rows in flight at a time.
    constexpr int kSlots =
        std::min(kRows, (kSharedBytes - kRows * kFloatRowBytes - TileType::kExtraBytes) / kSlotBytes);
    static_assert(kSlots >= 2, "too little shared memory");
    const Masters masters(extent_);
    const auto& walk = tile.walk();
    uint8_t* const slots = MasterRow(kRows) + TileType::kExtraBytes;
    moments_.LoadScales(walk);
    // Fetches all rows of the master at once, with the first rows of the other arrays.
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int row = slot; row < kRows; row += kSlots) {
        if (row >= walk.rows) break;
        const auto place = walk.At(row);
        masters.template Fetch<kRows>(place.index, tile.Valid(place), row);
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
      Elements elements;
      elements.master = masters.template Read<kRows>(place.index, row);
      ReadOthers(place.index, row, others, elements);
      const uint32_t valid = tile.Valid(place);
      if (row + kSlots < walk.rows) FetchOthers(tile, fetched, others);
      CommitCopies();
      walk.Advance(fetched);
      if (!Access::kInPart || valid != 0) {
        Policy::Update(constants_, elements.gradient, elements.master.values, elements.moments);
        masters.Store(elements.master, place.index, distance_, valid, row);
        moments_.Store(elements.moments, place.index, distance_, row, valid);
        tile.Visit(place, valid, elements.master.values);
      }
      walk.Advance(place);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    moments_.StoreScales(walk, distance_);
    tile.Finish();
  }

 private:
  using Gradients = GradientRows<Access, kGradients>;
  using Moments = MomentSet<Access, kMoments, Policy::kMomentCount>;

  static constexpr int kGradientBytes = Gradients::kSlotBytes;
  static constexpr int kSlotBytes = kGradientBytes + Moments::kSlotBytes;

  struct Elements {
    Quad<float> master;
    float gradient[kQuad];
    float moments[Policy::kMomentCount + 1][kQuad];  // the last is not used
  };

  template <typename TileType, typename Place>
  __device__ void FetchOthers(const TileType& tile, const Place& place, uint8_t* slot) {
    const uint32_t valid = tile.Valid(place);
    gradients_.Fetch(place.index, valid, slot);
    moments_.Fetch(place.index, valid, slot + kGradientBytes);
  }

  __device__ void ReadOthers(int64_t index, int row, const uint8_t* slot, Elements& elements) {
    gradients_.Read(index, slot, elements.gradient);
    moments_.Read(index, row, slot + kGradientBytes, elements.moments);
  }

  const DeviceExtent& extent_;
  const StepConstants& constants_;
  const Gradients gradients_;
  Moments moments_;
  const int64_t distance_;
};

// Brings the master's rows into shared memory, and nothing else.
template <typename Access>
class EncodeRows {
 public:
  explicit __device__ EncodeRows(const DeviceExtent& extent) : extent_(extent) {}

  template <typename TileType>
  __device__ void Run(TileType& tile) {
    if constexpr (!TileType::kSplitMaster) {
      Encode(tile);
    } else if (reinterpret_cast<uint8_t*>(extent_.weights) != extent_.row_wise.data) {
      CopyWeights(tile);
    }
  }

 private:
  template <typename TileType>
  __device__ void Encode(TileType& tile) const {
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

  // The plane of a split master are its weights.
  template <typename TileType>
  __device__ void CopyWeights(const TileType& tile) const {
    const auto& walk = tile.walk();
    for (int row = 0; row < walk.rows; ++row) {
      const auto place = walk.At(row);
      Access::Fetch(extent_.weights, place.index, tile.Valid(place), MasterRow(row));
    }
    CommitCopies();
    AwaitCopies<0>();
    for (int row = 0; row < walk.rows; ++row) {
      const auto place = walk.At(row);
      const Quad<uint16_t> weights = Access::Read(extent_.weights, place.index, MasterRow(row));
      Access::StoreAnywhere(weights, place.index, tile.Valid(place), extent_.row_wise.data);
    }
  }

  const DeviceExtent& extent_;
};

// Returns an extent with the addresses of the state's current position.
__device__ __forceinline__ DeviceExtent ExtentWhereItLies(const KernelLaunch& launch, uint32_t index) {
  DeviceExtent extent = launch.extents[index];
  if (launch.position == 0) return extent;
  const auto move = [&](auto*& array) { array = array == nullptr ? array : Moved(array, launch.position); };
  move(extent.master);
  move(extent.remainder);
  if (extent.remainder != nullptr) move(extent.weights);
  for (MutableMoment& moment : extent.moments) {
    move(moment.data);
    move(moment.scales);
  }
  return extent;
}

template <typename Access>
struct TilesOf {
  using Flat = FlatTile<Access>;
  using SplitFlat = SplitFlatTile<Access>;
  template <typename Element>
  using Mxfp8 = Mxfp8Tile<Access, Element>;
  template <typename Element>
  using Fp8Block = Fp8BlockTile<Access, Element>;
};

template <>
struct TilesOf<ShiftedAccess> {
  using Flat = ShiftedFlatTile;
  using SplitFlat = void;
  template <typename Element>
  using Mxfp8 = ShiftedMxfp8Tile<Element>;
  template <typename Element>
  using Fp8Block = ShiftedFp8BlockTile<Element>;
};

// Runs a tile of an extent with `rows`.
template <typename Access, StepTiles kTiles, typename Rows>
class TileRun {
 public:
  __device__ TileRun(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch& launch, Rows& rows)
      : extent_(extent), tile_(tile), launch_(launch), rows_(rows) {}

  __device__ void Run() {
    const bool e4m3 = extent_.encoding.element == ElementType::kE4M3;
    if (GpuFormatOf(extent_.encoding.format).step_tiles == StepTiles::kFlat) {
      RunFlat();
    } else if constexpr (kTiles == StepTiles::kFp8Block) {
      if (e4m3) return RunAs<typename Tiles::template Fp8Block<E4M3>>();
      RunAs<typename Tiles::template Fp8Block<E5M2>>();
    } else {
      static_assert(kTiles == StepTiles::kMxfp8, "tiles that are not run");
      if (e4m3) return RunAs<typename Tiles::template Mxfp8<E4M3>>();
      RunAs<typename Tiles::template Mxfp8<E5M2>>();
    }
  }

 private:
  using Tiles = TilesOf<Access>;

  __device__ void RunFlat() {
    if constexpr (!std::is_same_v<Access, ShiftedAccess>) {
      if (extent_.remainder != nullptr) return RunAs<typename Tiles::SplitFlat>();
    }
    RunAs<typename Tiles::Flat>();
  }

  template <typename TileType>
  __device__ void RunAs() {
    TileType tile(extent_, tile_, launch_);
    rows_.Run(tile);
  }

  const DeviceExtent& extent_;
  const KernelTile& tile_;
  const KernelLaunch& launch_;
  Rows& rows_;
};

template <typename Access, StepTiles kTiles, typename Rows>
__device__ void RunTile(const DeviceExtent& extent, const KernelTile& tile, const KernelLaunch& launch, Rows rows) {
  TileRun<Access, kTiles, Rows>(extent, tile, launch, rows).Run();
}

// Number of blocks that share a multiprocessor, and the shared memory of each, less a little for static arrays.
template <typename Access, StepTiles kTiles, KernelMoments kMoments>
constexpr int kResidentBlocks =
    kTiles == StepTiles::kFp8Block || std::is_same_v<Access, StridedAccess> || kMoments == KernelMoments::kAny ? 2 : 3;
template <typename Access, StepTiles kTiles, KernelMoments kMoments>
constexpr int kSharedBytes = (kResidentBlocks<Access, kTiles, kMoments> == 2 ? 112 : 74) * 1024;

template <typename Access, StepTiles kTiles, int kCount, KernelMoments kMoments, KernelGradients kGradients>
__global__ __launch_bounds__(kThreads,
                             kResidentBlocks<Access, kTiles, kMoments>) void StepTilesKernel(KernelLaunch launch) {
  // Copies, which need not be read again after every store.
  const KernelTile tile = launch.tiles[blockIdx.x];
  const DeviceExtent extent = ExtentWhereItLies(launch, tile.extent);
  const StepConstants constants = launch.constants[launch.constants_of[tile.extent]];
  using Rows = StepRows<ElementsWith<kCount>, Access, kMoments, kGradients, kSharedBytes<Access, kTiles, kMoments>>;
  RunTile<Access, kTiles>(extent, tile, launch, Rows(extent, constants, launch.distance));
}

template <typename Access, StepTiles kTiles>
__global__ __launch_bounds__(kThreads, kResidentBlocks<Access, kTiles, KernelMoments::kFP32>) void EncodeTilesKernel(
    KernelLaunch launch) {
  const KernelTile tile = launch.tiles[blockIdx.x];
  const DeviceExtent extent = ExtentWhereItLies(launch, tile.extent);
  RunTile<Access, kTiles>(extent, tile, launch, EncodeRows<Access>(extent));
}

template <typename Access, StepTiles kTiles, int kCount, KernelMoments kMoments, KernelGradients kGradients>
DeviceKernel StepKernel() {
  return {StepTilesKernel<Access, kTiles, kCount, kMoments, kGradients>, kSharedBytes<Access, kTiles, kMoments>};
}

// Kernels for moments of one type with gradients of either type, or any types of both.
template <typename Access, StepTiles kTiles, int kCount, KernelMoments kMoments>
DeviceKernel StepKernelWith(KernelGradients gradients) {
  if constexpr (kMoments == KernelMoments::kAny) {
    return StepKernel<Access, kTiles, kCount, kMoments, KernelGradients::kAny>();
  } else {
    switch (gradients) {
      case KernelGradients::kFP32:
        return StepKernel<Access, kTiles, kCount, kMoments, KernelGradients::kFP32>();
      case KernelGradients::kBF16:
        return StepKernel<Access, kTiles, kCount, kMoments, KernelGradients::kBF16>();
      case KernelGradients::kAny:
        break;  // joins any moments
    }
    return {};
  }
}

template <typename Access, int kCount, KernelMoments kMoments>
DeviceKernel StepKernelOf(const KernelKind& kind) {
  switch (kind.tiles) {
    case StepTiles::kMxfp8:
      return StepKernelWith<Access, StepTiles::kMxfp8, kCount, kMoments>(kind.gradients);
    case StepTiles::kFp8Block:
      return StepKernelWith<Access, StepTiles::kFp8Block, kCount, kMoments>(kind.gradients);
    case StepTiles::kFlat:
      break;  // joins one of the others
  }
  return {};
}

// Calls `kernel_of` with a number of moments, as a type.
template <typename Function>
DeviceKernel WithMomentCount(int count, const Function& kernel_of) {
  static_assert(kMomentCount == 2, "a number of moments without kernels");
  switch (count) {
    case 0:
      return kernel_of(std::integral_constant<int, 0>());
    case 1:
      return kernel_of(std::integral_constant<int, 1>());
    case 2:
      return kernel_of(std::integral_constant<int, 2>());
  }
  return {};
}

template <typename Access>
DeviceKernel EncodeKernelOf(StepTiles tiles) {
  switch (tiles) {
    case StepTiles::kMxfp8:
      return {EncodeTilesKernel<Access, StepTiles::kMxfp8>,
              kSharedBytes<Access, StepTiles::kMxfp8, KernelMoments::kFP32>};
    case StepTiles::kFp8Block:
      return {EncodeTilesKernel<Access, StepTiles::kFp8Block>,
              kSharedBytes<Access, StepTiles::kFp8Block, KernelMoments::kFP32>};
    case StepTiles::kFlat:
      break;  // joins one of the others
  }
  return {};
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_STEP_ROWS_CUDA_H_
