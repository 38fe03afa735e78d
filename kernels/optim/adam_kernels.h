// The kernels behind FusedAdamPlan, and the tables that they read from device memory.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/formats/format.h"
#include "kernels/formats/tile.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adam_math_cuda.h"

namespace paramshard::gpu {

// An extent, with the shape that it is walked in (WalkedShape()).
struct DeviceExtent {
  const float* gradient;
  float* master;
  void* exp_avg;
  void* exp_avg_sq;
  MutablePlane row_wise;
  MutablePlane column_wise;
  int64_t rows;
  int64_t columns;
  Encoding encoding;
  // Elements that the arrays of the state begin past an address that is aligned to kShiftAlignment elements. ShiftedAccess only.
  int phase;
};

// The piece of an extent that one block works on: tile `row`, `column` of those that GpuTileShape() cuts it into.
struct alignas(16) AdamTile {
  uint32_t extent;
  uint32_t row;
  uint32_t column;
};

// The same number of elements for formats without scales and for MXFP8, twice as many for 128 x 128 blocks.
constexpr MatrixShape GpuTileShape(Format format) {
  switch (format) {
    case Format::kMXFP8:
      return {32, 256};
    case Format::kFP8Block128x128:
      return {128, 128};
    default:
      return {1, 8192};
  }
}

// How the elements of an extent can be accessed.
enum class AdamAccess : uint8_t {
  kQuads,    // four consecutive ones of a row at once, in every array
  kShifted,  // four at once in every array of the state, but rows begin and end among them
  kStrided,  // one by one
};

// What all extents of a launch have in common, and a kernel is compiled for.
struct AdamKind {
  MomentType exp_avg;
  MomentType exp_avg_sq;
  AdamAccess access;
  // FP8_BLOCK_128X128, whose tiles are large, or else MXFP8. Formats without scales are in either.
  bool large;

  friend bool operator==(const AdamKind& a, const AdamKind& b) {
    return a.exp_avg == b.exp_avg && a.exp_avg_sq == b.exp_avg_sq && a.access == b.access && a.large == b.large;
  }
};

// Pointers to device memory. An extent's constants are constants[constants_of[extent]]: most extents share theirs.
struct AdamLaunch {
  const DeviceExtent* extents;
  const AdamConstants* constants;
  const uint32_t* constants_of;
  const AdamTile* tiles;
  int64_t tile_count;
};

// Steps the tiles, or only encodes their masters, which reads no moments and no constants. On the current device.
cudaError_t LaunchAdamStep(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream);
cudaError_t LaunchAdamEncode(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_KERNELS_H_
