// The kernel that multiplies on GPUs of compute capability 9.0: its parameters, and their launch.
//
// Internal to kernels/products/.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_HOPPER_LAUNCH_H_
#define PARAMSHARD_KERNELS_PRODUCTS_HOPPER_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::gpu::hopper {

// A worker is a cluster of two blocks. It makes tiles of kTileRows x kTileColumns elements: each block has the operand of
// its own half of the rows, and half of that of all columns, which both receive.
inline constexpr int kClusterBlocks = 2;
inline constexpr int kBlockRows = 128;
inline constexpr int kTileRows = kClusterBlocks * kBlockRows;
inline constexpr int kTileColumns = 256;

// Elements of BF16 in 128 bytes, which is the width of all boxes; and terms of one stage.
inline constexpr int kBoxWidth = 64;
inline constexpr int kTerms = kBoxWidth;

struct DeviceProduct {
  // Boxes of kBlockRows rows of terms; of a transposed operand kTerms rows.
  CUtensorMap left, right;
  // Boxes of kBoxWidth rows.
  CUtensorMap addend, result;
  int32_t stages;  // of kTerms
  float factor;
  float addend_factor;       // 0: there is no addend
  bool left_is_transposed;   // its rows are terms
  bool right_is_transposed;  // always, if the left one is
  bool is_symmetric;
};

inline constexpr int kMostProducts = 12;
inline constexpr int kMostTiles = 2048;
inline constexpr int kMostWorkers = 128;

// Kernel parameters: no memory has to live as long as the launch.
struct Launch {
  DeviceProduct products[kMostProducts];
  uint64_t tiles[kMostTiles];  // Packed(), by worker
  uint16_t first_tiles[kMostWorkers + 1];
};
static_assert(sizeof(Launch) <= 32764, "more than the parameters of a kernel");

// A tile: its product, and its place in the grid of tiles.
inline constexpr int kCoordinateBits = 28;
constexpr uint64_t Packed(int32_t product, int32_t row, int32_t column) {
  return static_cast<uint64_t>(product) << (2 * kCoordinateBits) | static_cast<uint64_t>(row) << kCoordinateBits |
         static_cast<uint64_t>(column);
}

// Returns the number of workers of this thread's current device.
absl::StatusOr<int> CountWorkers();

// Enqueues the products' tiles, on the current device.
absl::Status Enqueue(const Launch& launch, int workers, cudaStream_t stream);

}  // namespace paramshard::gpu::hopper

#endif  // PARAMSHARD_KERNELS_PRODUCTS_HOPPER_LAUNCH_H_
