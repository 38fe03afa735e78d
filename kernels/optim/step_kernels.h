// The kernels behind FusedStepPlan, and the tables that they read from device memory.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_STEP_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_STEP_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/state_types.h"
#include "kernels/reduce/gradient.h"

namespace paramshard::gpu {

struct DeviceExtent {
  ConstGradient gradient;
  // Null if the master is stored in `weights`, which may be the row-wise plane's data, and `remainder`.
  float* master;
  int16_t* remainder;
  uint16_t* weights;
  PerMoment<MutableMoment> moments;
  MutablePlane row_wise;
  MutablePlane column_wise;
  int64_t rows;
  int64_t columns;
  Encoding encoding;
  AmaxUse amax_use;
  // Without blocks that tie rows or columns together: is not walked as one long row, because blocks of moments end with
  // rows.
  bool by_rows;
  // Elements that the arrays of the state begin past an address that is aligned to kShiftAlignment elements.
  // ShiftedAccess only.
  int phase;
};

// Kind of the number that is stored with a plane.
enum class StoredScaling : uint32_t { kNone, kScaleInv, kAmax };

// Scaling of an extent whose format needs an amax.
struct DeviceScaling {
  // Factor of elements; for NVFP4_2D the tensor's scale S (scale_math.h).
  float multiplier;
  // The number stored with the plane, and the field that this pass stores it in.
  float stored;
  StoredScaling stored_as;
};

// The piece of an extent that one block works on: tile `row`, `column` of the extent's tiles.
struct alignas(16) KernelTile {
  uint32_t extent;
  uint32_t row;
  uint32_t column;
};

// Elements in a tile of an extent that is walked as one long row.
constexpr int64_t kFlatTileColumns = 8192;

// Tiles that a kernel encodes while it steps.
enum class StepTiles : uint8_t {
  kFlat,      // none: elements are encoded one by one, or in a pass of their own after the step
  kMxfp8,     // 1 x 32, 32 x 1 and 32 x 32 elements share a scale
  kFp8Block,  // 128 x 128 elements do
};

// Tiles of a format's extents, one for each block of threads. {0, 0}: pieces of one long row.
struct GpuFormat {
  StepTiles step_tiles;
  MatrixShape step_tile_shape;
  // Tiles of the pass that encodes when the amax is known, if it is a pass of its own.
  MatrixShape late_tile_shape;
};

// Returns the tiles of a format: as many elements for MXFP8 as for flat tiles, twice as many for 128 x 128 blocks.
constexpr GpuFormat GpuFormatOf(Format format) {
  switch (format) {
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return {StepTiles::kFlat, {}, {}};
    case Format::kFP8Block128x128:
      return {StepTiles::kFp8Block, {128, 128}, {}};
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      return {StepTiles::kMxfp8, {32, 256}, {}};
    case Format::kNVFP4_2D:
      return {StepTiles::kFlat, {}, {16, 1024}};
  }
  return {};
}

// Returns true if the tiles that encode a format cut none of its blocks. A tile with part of a block would not know its
// scale, and would store past the end of a plane.
constexpr bool TilesHoldBlocks(const FormatTraits& traits) {
  const GpuFormat gpu = GpuFormatOf(traits.format);
  const bool is_late = traits.amax_use == AmaxUse::kBeforeEncoding;
  const MatrixShape tile = is_late ? gpu.late_tile_shape : gpu.step_tile_shape;
  for (const MatrixShape& block : {traits.row_wise_block, traits.column_wise_block}) {
    if (block.rows == 0 || block.rows == kUnbounded) continue;
    if (tile.rows == 0 || tile.rows % block.rows != 0 || tile.cols % block.cols != 0) return false;
  }
  return (gpu.step_tiles == StepTiles::kFlat) == (gpu.step_tile_shape.rows == 0);
}

constexpr bool AllTilesHoldBlocks() {
  for (const FormatTraits& traits : kFormats) {
    if (!TilesHoldBlocks(traits)) return false;
  }
  return true;
}
static_assert(AllTilesHoldBlocks(), "a format without tiles for its blocks");

// The tiles of an extent that is flat, but by_rows.
constexpr MatrixShape kRowsTileShape = {8, 1024};

// Work of a launch on an extent.
enum class KernelPass : uint8_t {
  kStep,     // updates, finds the amax of formats that need one, and encodes those that need not wait for it
  kEncode,   // encodes from the master
  kMeasure,  // finds the amax of the master
};

// Types of all moments: one type, with the number of MomentType, or (kAny) the types of each extent.
enum class KernelMoments : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8 = 4, kAny = 5 };

// Types of gradients: one type, with the number of GradientType, or (kAny) the type of each extent. kAny works with any
// moments.
enum class KernelGradients : uint8_t { kFP32 = 1, kBF16 = 2, kAny = 3 };

// Access to the elements of an extent.
enum class KernelAccess : uint8_t {
  kQuads,    // four consecutive ones of a row at once, in every array
  kShifted,  // four at once in every array of the state, but rows begin and end among them
  kStrided,  // one by one
  kNvfp4,    // for encoding NVFP4_2D, however they lie
};

// Properties that all extents of a launch share; there is a kernel for each combination.
struct KernelKind {
  // Moments that the optimizers keep. One kernel steps by all optimizers with as many.
  int moment_count;
  KernelMoments moments;
  KernelGradients gradients;
  KernelAccess access;
  // Tiles of the formats in blocks, never kFlat. Flat extents join either kind.
  StepTiles tiles;

  friend bool operator==(const KernelKind& a, const KernelKind& b) {
    return a.moment_count == b.moment_count && a.moments == b.moments && a.gradients == b.gradients &&
           a.access == b.access && a.tiles == b.tiles;
  }
};

// Pointers to device memory. An extent's constants are constants[constants_of[extent]]: most extents share theirs.
struct KernelLaunch {
  const DeviceExtent* extents;
  const StepConstants* constants;
  const uint32_t* constants_of;
  const DeviceScaling* scalings;
  // Bits of each extent's amax, which only grow.
  uint32_t* amaxes;
  const KernelTile* tiles;
  int64_t tile_count;
  // The state lies `position` bytes behind the extents' addresses, in every array, and a step leaves it `distance`
  // bytes further on (state_bands.h).
  int64_t position;
  int64_t distance;
  KernelPass pass;
};

// Steps the tiles. On the current device, as all of these.
cudaError_t LaunchStep(const KernelKind& kind, const KernelLaunch& launch, cudaStream_t stream);

// Encodes or measures the masters, which reads no moments and no constants.
cudaError_t LaunchEncode(const KernelKind& kind, const KernelLaunch& launch, cudaStream_t stream);

// Writes the stored part of the scaling of each of `count` extents.
cudaError_t LaunchStoreScalings(const DeviceExtent* extents, const DeviceScaling* scalings, uint32_t count,
                                cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_STEP_KERNELS_H_
