// The kernels behind FusedAdamPlan, and the tables that they read from device memory.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/formats/format.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adam_math_cuda.h"

namespace paramshard::gpu {

struct DeviceExtent {
  const float* gradient;
  // Null where the master is the row-wise plane's data and `remainder`.
  float* master;
  int16_t* remainder;
  MutableMoment exp_avg;
  MutableMoment exp_avg_sq;
  MutablePlane row_wise;
  MutablePlane column_wise;
  int64_t rows;
  int64_t columns;
  Encoding encoding;
  // Without blocks that tie rows or columns together: is not walked as one long row, because blocks of moments end with
  // rows.
  bool by_rows;
  // Elements that the arrays of the state begin past an address that is aligned to kShiftAlignment elements.
  // ShiftedAccess only.
  int phase;
};

// What FP8_TENSOR_* and NVFP4_2D are encoded with.
struct DeviceScaling {
  // Of elements; for NVFP4_2D the tensor's scale S (scale_math.h).
  float multiplier;
  // What goes with the plane: scale_inv, or the amax of NVFP4_2D.
  float stored;
  // 1: write `stored` in this pass.
  uint32_t is_stored;
};

// The piece of an extent that one block works on: tile `row`, `column` of those that GpuTileShape() cuts it into.
struct alignas(16) AdamTile {
  uint32_t extent;
  uint32_t row;
  uint32_t column;
};

// What is walked as one long row is cut into pieces of this many elements.
constexpr int64_t kFlatTileColumns = 8192;

// The tiles of the formats in blocks that are encoded with the step: as many elements for MXFP8 as for flat tiles,
// twice as many for 128 x 128 blocks. {0, 0} for the others.
constexpr MatrixShape GpuTileShape(Format format) {
  switch (format) {
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      return {32, 256};
    case Format::kFP8Block128x128:
      return {128, 128};
    default:
      return {0, 0};
  }
}

// The tiles of an extent that is flat, but by_rows.
constexpr MatrixShape kRowsTileShape = {8, 1024};

// The tiles in which NVFP4_2D is encoded.
constexpr MatrixShape kNvfp4TileShape = {16, 1024};

// What a launch does with an extent.
enum class AdamPass : uint8_t {
  kStep,     // updates, finds the amax of formats that need one, and encodes those that need not wait for it
  kEncode,   // encodes from the master
  kMeasure,  // finds the amax of the master
};

// How both moments are stored: the same way, or (kAny) as each extent says.
enum class AdamMoments : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8 = 4, kAny = 5 };

// How the elements of an extent can be accessed.
enum class AdamAccess : uint8_t {
  kQuads,    // four consecutive ones of a row at once, in every array
  kShifted,  // four at once in every array of the state, but rows begin and end among them
  kStrided,  // one by one
  kNvfp4,    // for encoding NVFP4_2D, however they lie
};

// What all extents of a launch have in common, and a kernel is compiled for.
struct AdamKind {
  AdamMoments moments;
  AdamAccess access;
  // FP8_BLOCK_128X128, whose tiles are large, or else MXFP8 and MXFP8_2D. Flat extents are in either.
  bool large;

  friend bool operator==(const AdamKind& a, const AdamKind& b) {
    return a.moments == b.moments && a.access == b.access && a.large == b.large;
  }
};

// Pointers to device memory. An extent's constants are constants[constants_of[extent]]: most extents share theirs.
struct AdamLaunch {
  const DeviceExtent* extents;
  const AdamConstants* constants;
  const uint32_t* constants_of;
  const DeviceScaling* scalings;
  // Bits of each extent's amax, which only grow.
  uint32_t* amaxes;
  const AdamTile* tiles;
  int64_t tile_count;
  AdamPass pass;
};

// Steps the tiles. On the current device, as all of these.
cudaError_t LaunchAdamStep(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream);

// Encodes or measures the masters, which reads no moments and no constants.
cudaError_t LaunchAdamEncode(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream);

// Writes what each of `count` extents stores of its scaling.
cudaError_t LaunchStoreScalings(const DeviceExtent* extents, const DeviceScaling* scalings, uint32_t count,
                                cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_
