// Access of a tile's threads to its elements in global and in shared memory.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_TILE_MEMORY_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_TILE_MEMORY_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/float_bits.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/formats/scale_math.h"
#include "kernels/gpu/global_memory.h"

namespace paramshard::gpu {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kQuad = 4;
// Mask of all four elements, with a bit for each.
constexpr uint32_t kAll = (1u << kQuad) - 1;
// Elements that a warp has in one row.
constexpr int kWarpColumns = kWarpSize * kQuad;
// Bytes of one row of all threads' float32 elements.
constexpr int kFloatRowBytes = kThreads * kQuad * 4;

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }

// Returns the address after a move by `bytes`.
template <typename T>
__device__ __forceinline__ T* Moved(T* address, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(address) + bytes);
}

// Stores an object anywhere.
template <typename T>
__device__ __forceinline__ void StoreBytes(const T& value, uint8_t* address) {
  uint8_t bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof(T));
#pragma unroll
  for (size_t i = 0; i < sizeof(T); ++i) StoreGlobal(bytes[i], address + i);
}

// Four elements. Small ones stay packed in words: as an array, each would be moved by itself.
template <typename T>
struct alignas(kQuad * sizeof(T)) Quad {
  __device__ __forceinline__ T Get(int j) const { return values[j]; }
  __device__ __forceinline__ void Set(int j, T value) { values[j] = value; }

  T values[kQuad];
};

template <>
struct alignas(8) Quad<uint16_t> {
  __device__ __forceinline__ uint16_t Get(int j) const { return static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16)); }
  __device__ __forceinline__ void Set(int j, uint16_t value) {
    words[j / 2] = __byte_perm(words[j / 2], value, j % 2 == 0 ? 0x3254 : 0x5410);
  }

  uint32_t words[2] = {};  // the first element in the low half of the first
};

template <>
struct alignas(4) Quad<uint8_t> {
  __device__ __forceinline__ uint8_t Get(int j) const { return static_cast<uint8_t>(word >> (j * 8)); }
  __device__ __forceinline__ void Set(int j, uint8_t value) {
    word = (word & ~(0xffu << (j * 8))) | uint32_t{value} << (j * 8);
  }

  uint32_t word = 0;  // the first element in the low byte
};

// Layout in memory, and access, of a thread's four elements of a row. `index` is the index of the first element,
// `valid` has a bit for each.
//
// QuadAccess: next to each other, all valid or none. ShiftedAccess: the same, in part valid. StridedAccess: 32 apart,
// so that a warp's accesses are dense for any alignment.
struct QuadAccess {
  // True if quads may be valid in part. Nothing is done for quads without a valid element.
  static constexpr bool kInPart = false;
  static constexpr int kFirst = kQuad;  // of a lane's first element, per lane
  static constexpr int kStep = 1;
  // Lanes that share a block of 32 columns.
  static constexpr int kBlockLanes = 32 / kQuad;

  // Returns the mask of those of the four elements from `index` on that are among the first `count`.
  __device__ static uint32_t Below(int64_t index, int64_t count) { return index < count ? kAll : 0u; }

  template <typename T>
  static constexpr int kRowBytes = kThreads* kQuad * sizeof(T);

  template <typename T>
  __device__ static void Fetch(const T* source, int64_t index, uint32_t valid, uint8_t* row) {
    CopyAsync<kQuad * sizeof(T)>(row + threadIdx.x * (kQuad * sizeof(T)), source + index,
                                 valid != 0 ? kQuad * sizeof(T) : 0);
  }

  template <typename T>
  __device__ static Quad<T> Read(const T*, int64_t, const uint8_t* row) {
    return reinterpret_cast<const Quad<T>*>(row)[threadIdx.x];
  }

  template <typename T>
  __device__ static void Keep(const Quad<T>& quad, uint8_t* row) {
    reinterpret_cast<Quad<T>*>(row)[threadIdx.x] = quad;
  }

  template <typename T>
  __device__ static void Store(const Quad<T>& quad, int64_t index, uint32_t valid, T* target) {
    if (valid != 0) StoreGlobal(quad, target + index);
  }

  // Stores to a plane, which is aligned like other arrays here, but may have any alignment in StridedAccess.
  template <typename T>
  __device__ static void StoreAnywhere(const Quad<T>& quad, int64_t index, uint32_t valid, uint8_t* target) {
    Store(quad, index, valid, reinterpret_cast<T*>(target));
  }

  // Stores four bytes, the first in the low byte.
  __device__ static void StoreCodes(uint32_t codes, int64_t index, uint32_t valid, uint8_t* target) {
    if (valid != 0) StoreGlobal(codes, target + index);
  }

  // Raises the amax of each element to the amax of its block of 32 columns in the warp.
  __device__ static void RaiseToBlocks(float (&amax)[kQuad]) {
    float largest = fmaxf(fmaxf(amax[0], amax[1]), fmaxf(amax[2], amax[3]));
#pragma unroll
    for (int distance = 1; distance < kBlockLanes; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) amax[j] = largest;
  }

  // Returns the scale that this lane stores, out of the scales of four elements' blocks, one per byte.
  __device__ static uint8_t OwnScale(uint32_t scales) { return static_cast<uint8_t>(scales); }

  // For the blocks of 32 columns in a warp's row: sets the multiplier of each element, and returns the scale that this
  // lane stores.
  template <typename Element>
  __device__ static uint8_t ScaleBlocks(const float (&values)[kQuad], float (&multipliers)[kQuad]) {
    float amax = 0.0f;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) amax = fmaxf(amax, fabsf(values[j]));
#pragma unroll
    for (int distance = 1; distance < kBlockLanes; distance *= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, distance));
    }
    const uint8_t scale = ComputeE8M0Scale(amax, Element::kMax);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) multipliers[j] = E8M0EncodeMultiplier(scale);
    return scale;
  }

  // Stores the lanes' scales; `scales` points to the scale of the warp's first block.
  __device__ static void StoreScale(uint8_t scale, uint32_t valid, uint8_t* scales) {
    if (valid != 0 && Lane() % kBlockLanes == 0) StoreGlobal(scale, scales + Lane() / kBlockLanes);
  }
};

// A thread's four elements are next to each other and aligned to 16 bytes in memory, but a row may begin or end among
// them: any of them may be invalid. Invalid elements are loaded, but not stored.
struct ShiftedAccess : QuadAccess {
  static constexpr bool kInPart = true;

  template <typename T>
  __device__ static void Fetch(const T* source, int64_t index, uint32_t valid, uint8_t* row) {
    // A quad aligned to its size lies in the array as a whole if one of its elements does.
    if (valid != 0) CopyAsync<kQuad * sizeof(T)>(row + threadIdx.x * (kQuad * sizeof(T)), source + index);
  }

  template <typename T>
  __device__ static void Store(const Quad<T>& quad, int64_t index, uint32_t valid, T* target) {
    if (valid == kAll) return StoreGlobal(quad, target + index);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreGlobal(quad.Get(j), target + index + j);
    }
  }

  template <typename T>
  __device__ static void StoreAnywhere(const Quad<T>& quad, int64_t index, uint32_t valid, uint8_t* target) {
    uint8_t* const first = target + index * sizeof(T);
    if (valid == kAll && reinterpret_cast<uintptr_t>(first) % sizeof(quad) == 0) return StoreGlobal(quad, first);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreBytes(quad.Get(j), first + j * sizeof(T));
    }
  }
};

struct StridedAccess {
  static constexpr bool kInPart = false;
  static constexpr int kFirst = 1;
  static constexpr int kStep = kWarpSize;

  __device__ static uint32_t Below(int64_t index, int64_t count) {
    uint32_t below = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) below |= index + j * kStep < count ? 1u << j : 0u;
    return below;
  }

  // Words of 4 bytes, also for types of 2 bytes: a copy has at least 4.
  template <typename T>
  static constexpr int kRowBytes = kThreads* kQuad * 4;

  template <typename T>
  __device__ static void Fetch(const T* source, int64_t index, uint32_t valid, uint8_t* row) {
    const T* const address = source + index;
    const auto* first = reinterpret_cast<const uint8_t*>(address);
    // Loads an element of two bytes with the word around it. (An explicit instruction is shared by all four elements.)
    if (sizeof(T) < 4) asm("and.b64 %0, %1, -4;" : "=l"(first) : "l"(address));
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      CopyAsync<4>(row + (j * kThreads + threadIdx.x) * 4, first + j * kStep * sizeof(T),
                   (valid >> j & 1) != 0 ? 4 : 0);
    }
  }

  template <typename T>
  __device__ static Quad<T> Read(const T* source, int64_t index, const uint8_t* row) {
    const auto in_word = reinterpret_cast<uintptr_t>(source + index) & 3;
    Quad<T> quad;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      uint32_t word = reinterpret_cast<const uint32_t*>(row)[j * kThreads + threadIdx.x];
      if (sizeof(T) < 4) word >>= in_word * 8;
      T value;
      memcpy(&value, &word, sizeof(T));
      quad.Set(j, value);
    }
    return quad;
  }

  __device__ static void Keep(const Quad<float>& quad, uint8_t* row) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) reinterpret_cast<float*>(row)[j * kThreads + threadIdx.x] = quad.values[j];
  }

  template <typename T>
  __device__ static void Store(const Quad<T>& quad, int64_t index, uint32_t valid, T* target) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreGlobal(quad.Get(j), target + index + j * kStep);
    }
  }

  template <typename T>
  __device__ static void StoreAnywhere(const Quad<T>& quad, int64_t index, uint32_t valid, uint8_t* target) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreBytes(quad.Get(j), target + (index + j * kStep) * sizeof(T));
    }
  }

  __device__ static void StoreCodes(uint32_t codes, int64_t index, uint32_t valid, uint8_t* target) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreGlobal(static_cast<uint8_t>(codes >> (8 * j)), target + index + j * kStep);
    }
  }

  // A warp has four blocks, one for each of a lane's elements.
  __device__ static void RaiseToBlocks(float (&amax)[kQuad]) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) amax[j] = FloatFromBits(__reduce_max_sync(~0u, FloatBits(amax[j])));
  }

  __device__ static uint8_t OwnScale(uint32_t scales) { return static_cast<uint8_t>(scales >> (8 * (Lane() % kQuad))); }

  // Lane l computes the scale of block l modulo 4.
  template <typename Element>
  __device__ static uint8_t ScaleBlocks(const float (&values)[kQuad], float (&multipliers)[kQuad]) {
    uint32_t own = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const uint32_t amax = __reduce_max_sync(~0u, FloatBits(fmaxf(0.0f, fabsf(values[j]))));
      if (Lane() % kQuad == j) own = amax;
    }
    const uint8_t scale = ComputeE8M0Scale(FloatFromBits(own), Element::kMax);
    const float multiplier = E8M0EncodeMultiplier(scale);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) multipliers[j] = __shfl_sync(~0u, multiplier, j);
    return scale;
  }

  // A block exists when its first column does, which is lane 0's.
  __device__ static void StoreScale(uint8_t scale, uint32_t valid, uint8_t* scales) {
    const uint32_t blocks = __shfl_sync(~0u, valid, 0);
    if (Lane() < kQuad && (blocks >> Lane() & 1) != 0) StoreGlobal(scale, scales + Lane());
  }
};

__device__ __forceinline__ Quad<uint16_t> EncodeBFloat16Quad(const float (&values)[kQuad]) {
  return {{EncodeBFloat16Pair(values[0], values[1]), EncodeBFloat16Pair(values[2], values[3])}};
}

__device__ __forceinline__ Quad<uint16_t> EncodeFloat16Quad(const float (&values)[kQuad]) {
  return {{EncodeFloat16Pair(values[0], values[1]), EncodeFloat16Pair(values[2], values[3])}};
}

// Four codes, the first in the low byte.
template <typename Element>
__device__ __forceinline__ uint32_t EncodeFloat8(const float (&values)[kQuad], const float (&multipliers)[kQuad]) {
  return EncodeFloat8Quad<Element>(values[0] * multipliers[0], values[1] * multipliers[1], values[2] * multipliers[2],
                                   values[3] * multipliers[3]);
}

__device__ __forceinline__ void RaiseAmax(const float (&values)[kQuad], float (&amax)[kQuad]) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) amax[j] = fmaxf(amax[j], fabsf(values[j]));
}

// The largest of all threads' amaxes. All threads of the block call it, once.
__device__ __forceinline__ float BlockAmax(const float (&amax)[kQuad]) {
  __shared__ uint32_t warps[kWarps];
  const float largest = fmaxf(fmaxf(amax[0], amax[1]), fmaxf(amax[2], amax[3]));
  const uint32_t warp_amax = __reduce_max_sync(~0u, FloatBits(largest));
  if (Lane() == 0) warps[Warp()] = warp_amax;
  __syncthreads();
  uint32_t block_amax = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) block_amax = max(block_amax, warps[warp]);
  return FloatFromBits(block_amax);
}

// The elements of one thread in a tile: its r-th row's first element is number `first + r * stride` of the extent, in
// block `first_block + r * block_stride` of 128 columns, which is the same for all lanes of a warp.
struct Walk {
  struct Place {
    int64_t index;
  };

  __device__ Place At(int row) const { return {first + row * stride}; }
  __device__ void Advance(Place& place) const { place.index += stride; }
  __device__ int64_t BlockAt(int row) const { return first_block + row * block_stride; }

  int64_t first;
  int64_t stride;
  // Number of existing rows; the same for all lanes of a warp, 0 if none of the warp's columns exists.
  int rows;
  int64_t first_block;
  int64_t block_stride;
};

__device__ __forceinline__ int RowsUpTo(int64_t most, int64_t remaining, int64_t step) {
  return static_cast<int>(max(int64_t{0}, min(most, (remaining + step - 1) / step)));
}

// The block's shared memory: all rows of the master, then slots in which rows of the other arrays come and go.
extern __shared__ __align__(16) uint8_t shared_memory[];

__device__ __forceinline__ uint8_t* MasterRow(int row) { return shared_memory + row * kFloatRowBytes; }

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_TILE_MEMORY_CUDA_H_
