// One block of 256 threads works on one tile. A thread owns four elements of each of 8 or 16 rows, and is alone with them: it
// copies them into shared memory some rows ahead (cp.async, which takes no registers), updates them, stores the new state and
// keeps the new master in shared memory. What crosses threads are the amaxes: within a warp while rows pass, and once per
// tile between warps, before what waits for them is encoded. Two or three blocks fit a multiprocessor; while one starts or
// ends, the others keep memory busy.

#include "kernels/optim/adam_kernels.h"

#include <algorithm>
#include <type_traits>

#include "kernels/base/float_bits.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/packed_casts_cuda.h"
#include "kernels/formats/scale_math.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kQuad = 4;
// Elements that a warp has in one row.
constexpr int kWarpColumns = kWarpSize * kQuad;
// Bytes of one row of all threads' float32 elements.
constexpr int kFloatRowBytes = kThreads * kQuad * 4;

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }

// Copies kBytes into shared memory, or zeros, until AwaitCopies().
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool valid) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int source_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    // The lines around come into the second-level cache: 3 % of the time where rows are not aligned to them.
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(global), "n"(kBytes),
                 "r"(source_bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, except those of its kPending latest commits.
template <int kPending>
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Stores an object of 1, 2, 4, 8 or 16 bytes to global memory, at once. Written as an assignment, four floats become four
// stores to an address of a space that the compiler does not know.
template <typename T>
__device__ __forceinline__ void StoreGlobal(const T& value, void* address) {
  if constexpr (sizeof(T) == 16) {
    uint4 words;
    memcpy(&words, &value, sizeof(words));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w));
  } else if constexpr (sizeof(T) == 8) {
    uint2 words;
    memcpy(&words, &value, sizeof(words));
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words.x), "r"(words.y));
  } else {
    uint32_t word = 0;
    memcpy(&word, &value, sizeof(value));
    if constexpr (sizeof(T) == 4) asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(word));
    if constexpr (sizeof(T) == 2)
      asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(static_cast<uint16_t>(word)));
    if constexpr (sizeof(T) == 1) asm volatile("st.global.b8 [%0], %1;" ::"l"(address), "r"(word));
  }
}

// Stores an object anywhere.
template <typename T>
__device__ __forceinline__ void StoreBytes(const T& value, uint8_t* address) {
  uint8_t bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof(T));
#pragma unroll
  for (size_t i = 0; i < sizeof(T); ++i) StoreGlobal(bytes[i], address + i);
}

template <typename T>
struct alignas(kQuad * sizeof(T)) Quad {
  T values[kQuad];
};

// How a thread's four elements of a row lie in memory and are accessed. `index` is that of the first one, `valid` has a bit
// for each.
//
// QuadAccess: next to each other, all valid or none. StridedAccess: 32 apart, so that a warp's accesses are dense whatever
// the alignment.
struct QuadAccess {
  static constexpr int kFirst = kQuad;  // of a lane's first element, per lane
  static constexpr int kStep = 1;
  // Lanes that share a block of 32 columns.
  static constexpr int kBlockLanes = 32 / kQuad;

  // Which of the four elements from `index` are among the first `count`.
  __device__ static uint32_t Below(int64_t index, int64_t count) { return index < count ? (1u << kQuad) - 1 : 0u; }

  template <typename T>
  static constexpr int kRowBytes = kThreads* kQuad * sizeof(T);

  template <typename T>
  __device__ static void Fetch(const T* source, int64_t index, uint32_t valid, uint8_t* row) {
    CopyAsync<kQuad * sizeof(T)>(row + threadIdx.x * (kQuad * sizeof(T)), source + index, valid != 0);
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

  // The same to a plane, which is aligned like the rest here, and may begin anywhere for StridedAccess.
  template <typename T>
  __device__ static void StoreAnywhere(const Quad<T>& quad, int64_t index, uint32_t valid, uint8_t* target) {
    Store(quad, index, valid, reinterpret_cast<T*>(target));
  }

  // Stores four bytes, the first in the low byte.
  __device__ static void StoreCodes(uint32_t codes, int64_t index, uint32_t valid, uint8_t* target) {
    if (valid != 0) StoreGlobal(codes, target + index);
  }

  // For the blocks of 32 columns that the row of a warp has: what each element is multiplied by, and the scale that this lane
  // stores.
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

  // Stores the lanes' scales; `scales` is that of the warp's first block.
  __device__ static void StoreScale(uint8_t scale, uint32_t valid, uint8_t* scales) {
    if (valid != 0 && Lane() % kBlockLanes == 0) StoreGlobal(scale, scales + Lane() / kBlockLanes);
  }
};

struct StridedAccess {
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
    // An element of two bytes comes with the word around it. (As an instruction, so that it is one for all four elements.)
    if (sizeof(T) < 4) asm("and.b64 %0, %1, -4;" : "=l"(first) : "l"(address));
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      CopyAsync<4>(row + (j * kThreads + threadIdx.x) * 4, first + j * kStep * sizeof(T), (valid >> j & 1) != 0);
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
      memcpy(&quad.values[j], &word, sizeof(T));
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
      if ((valid >> j & 1) != 0) StoreGlobal(quad.values[j], target + index + j * kStep);
    }
  }

  template <typename T>
  __device__ static void StoreAnywhere(const Quad<T>& quad, int64_t index, uint32_t valid, uint8_t* target) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreBytes(quad.values[j], target + (index + j * kStep) * sizeof(T));
    }
  }

  __device__ static void StoreCodes(uint32_t codes, int64_t index, uint32_t valid, uint8_t* target) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if ((valid >> j & 1) != 0) StoreGlobal(static_cast<uint8_t>(codes >> (8 * j)), target + index + j * kStep);
    }
  }

  // A warp has four blocks, one for each of a lane's elements. Lane l computes the scale of block l modulo 4.
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

// How a moment is read and stored.
struct FloatMoment {
  using Stored = float;
  __device__ static float Load(Stored stored) { return stored; }
  __device__ static Quad<Stored> Store(const float (&values)[kQuad]) {
    return {{values[0], values[1], values[2], values[3]}};
  }
};

__device__ __forceinline__ Quad<uint16_t> EncodeBFloat16Quad(const float (&values)[kQuad]) {
  const uint32_t pairs[] = {EncodeBFloat16Pair(values[0], values[1]), EncodeBFloat16Pair(values[2], values[3])};
  Quad<uint16_t> quad;
  memcpy(quad.values, pairs, sizeof(pairs));
  return quad;
}

struct BFloat16Moment {
  using Stored = uint16_t;
  __device__ static float Load(Stored stored) { return DecodeBFloat16(stored); }
  __device__ static Quad<Stored> Store(const float (&values)[kQuad]) { return EncodeBFloat16Quad(values); }
};

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

// The elements of one thread in a tile: its r-th row's first element is number `first + r * stride` of the extent.
struct Walk {
  int64_t first;
  int64_t stride;
  // Rows that exist; the same for all lanes of a warp, 0 when none of the warp's columns does.
  int rows;
};

__device__ __forceinline__ int RowsUpTo(int64_t most, int64_t remaining, int64_t step) {
  return static_cast<int>(max(int64_t{0}, min(most, (remaining + step - 1) / step)));
}

// The block's shared memory: all rows of the master, then slots in which rows of the other arrays come and go.
extern __shared__ __align__(16) uint8_t shared_memory[];

__device__ __forceinline__ uint8_t* MasterRow(int row) { return shared_memory + row * kFloatRowBytes; }

// Encodes the rows of a tile that holds a part of a long row, element by element.
template <typename Access>
class FlatTile {
 public:
  static constexpr int kRows = 8;
  static constexpr int kExtraBytes = 0;

  __device__ FlatTile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent) {
    constexpr int64_t kTileColumns = GpuTileShape(Format::kFP32).cols;
    constexpr int64_t kRowColumns = kThreads * kQuad;
    const int64_t column = tile.column * kTileColumns + Warp() * kWarpColumns;
    walk_ = {column + Lane() * Access::kFirst, kRowColumns, RowsUpTo(kRows, extent.columns - column, kRowColumns)};
  }

  __device__ const Walk& walk() const { return walk_; }
  // Which of the elements from `index`, of a row that exists, exist.
  __device__ uint32_t Valid(int64_t index) const { return Access::Below(index, extent_.columns); }

  __device__ void Visit(int64_t index, uint32_t valid, const float (&master)[kQuad]) {
    uint8_t* const data = extent_.row_wise.data;
    if (data == nullptr) return;
    if (extent_.encoding.format == Format::kFP32) {
      const Quad<float> quad = {{master[0], master[1], master[2], master[3]}};
      Access::StoreAnywhere(quad, index, valid, data);
    } else {
      Access::StoreAnywhere(EncodeBFloat16Quad(master), index, valid, data);
    }
  }

  __device__ void Finish() {}

 private:
  const DeviceExtent& extent_;
  Walk walk_;
};

// Four groups of eight rows, of two warps side by side. The row-wise plane is encoded as rows pass; the column-wise one when
// the groups have told each other their columns' amaxes.
template <typename Access, typename Element>
class Mxfp8Tile {
 public:
  static constexpr int kRows = 8;
  static constexpr int kGroups = 4;
  static constexpr int kWarpsAcross = kWarps / kGroups;
  static constexpr int kColumns = kWarpsAcross * kWarpColumns;
  static constexpr int kExtraBytes = kGroups * kColumns * 4;

  __device__ Mxfp8Tile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent), tile_(tile) {
    columns_ = Access::Below(Column(), extent.columns);
    const int64_t rows = FirstColumn() < extent.columns ? extent.rows - FirstRow() : 0;
    walk_ = {FirstRow() * extent.columns + Column(), extent.columns, RowsUpTo(kRows, rows, 1)};
    row_scales_ = extent.row_wise.scales + FirstRow() * BlocksAcross() + FirstColumn() / 32;
  }

  __device__ const Walk& walk() const { return walk_; }
  __device__ uint32_t Valid(int64_t) const { return columns_; }

  __device__ void Visit(int64_t index, uint32_t valid, const float (&master)[kQuad]) {
    RaiseAmax(master, column_amax_);
    if (extent_.row_wise.data == nullptr) return;
    float multipliers[kQuad];
    const uint8_t scale = Access::template ScaleBlocks<Element>(master, multipliers);
    Access::StoreCodes(EncodeFloat8<Element>(master, multipliers), index, valid, extent_.row_wise.data);
    Access::StoreScale(scale, valid, row_scales_);
    row_scales_ += BlocksAcross();
  }

  __device__ void Finish() {
    if (extent_.column_wise.data == nullptr) return;
    ShareAmax();
    float multipliers[kQuad];
    const uint32_t scales = EncodeScales(column_amax_, multipliers);
    if (Group() == 0) {
      Access::StoreCodes(scales, tile_.row * extent_.columns + Column(), columns_, extent_.column_wise.scales);
    }
    int64_t index = walk_.first;
#pragma unroll 4
    for (int row = 0; row < walk_.rows; ++row) {
      const Quad<float> master = Access::template Read<float>(nullptr, 0, MasterRow(row));
      Access::StoreCodes(EncodeFloat8<Element>(master.values, multipliers), index, columns_, extent_.column_wise.data);
      index += walk_.stride;
    }
  }

 private:
  __device__ static int Group() { return Warp() / kWarpsAcross; }
  __device__ int64_t FirstRow() const { return tile_.row * int64_t{32} + Group() * kRows; }
  __device__ int64_t FirstColumn() const {
    return tile_.column * int64_t{kColumns} + Warp() % kWarpsAcross * kWarpColumns;
  }

  // This thread's first one.
  __device__ int64_t Column() const { return FirstColumn() + Lane() * Access::kFirst; }
  __device__ int64_t BlocksAcross() const { return (extent_.columns + 31) / 32; }

  // The scales of four blocks, as bytes, and what their elements are multiplied by.
  __device__ static uint32_t EncodeScales(const float (&amax)[kQuad], float (&multipliers)[kQuad]) {
    uint32_t scales = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const uint8_t scale = ComputeE8M0Scale(amax[j], Element::kMax);
      multipliers[j] = E8M0EncodeMultiplier(scale);
      scales |= uint32_t{scale} << (8 * j);
    }
    return scales;
  }

  // Raises every thread's amaxes to those of whole columns.
  __device__ void ShareAmax() {
    float* const shared = reinterpret_cast<float*>(MasterRow(kRows));
    float* const columns = shared + Warp() % kWarpsAcross * kWarpColumns + Lane() * Access::kFirst;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) columns[Group() * kColumns + j * Access::kStep] = column_amax_[j];
    __syncthreads();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        column_amax_[j] = fmaxf(column_amax_[j], columns[group * kColumns + j * Access::kStep]);
      }
    }
  }

  const DeviceExtent& extent_;
  const AdamTile& tile_;
  Walk walk_;
  // Which of this thread's columns exist.
  uint32_t columns_;
  float column_amax_[kQuad] = {};
  // Of the warp's first block in the next row.
  uint8_t* row_scales_;
};

// Warp w has rows w, w + 8, w + 16, ... of the block. All is encoded when the block's amax is known.
template <typename Access, typename Element>
class Fp8BlockTile {
 public:
  static constexpr int kRows = 16;
  static constexpr int kExtraBytes = 0;

  __device__ Fp8BlockTile(const DeviceExtent& extent, const AdamTile& tile) : extent_(extent), tile_(tile) {
    const int64_t first_row = tile.row * int64_t{128} + Warp();
    const int64_t column = tile.column * int64_t{kWarpColumns} + Lane() * Access::kFirst;
    columns_ = Access::Below(column, extent.columns);
    walk_ = {first_row * extent.columns + column, kWarps * extent.columns,
             RowsUpTo(kRows, extent.rows - first_row, kWarps)};
  }

  __device__ const Walk& walk() const { return walk_; }
  __device__ uint32_t Valid(int64_t) const { return columns_; }

  __device__ void Visit(int64_t, uint32_t, const float (&master)[kQuad]) { RaiseAmax(master, amax_); }

  __device__ void Finish() {
    if (extent_.row_wise.data == nullptr) return;
    const float scale = ComputeScale(BlockAmax(), Element::kMax, extent_.encoding.power_of_two_scales);
    if (threadIdx.x == 0) StoreScale(1.0f / scale);
    const float multipliers[kQuad] = {scale, scale, scale, scale};
    int64_t index = walk_.first;
#pragma unroll 4
    for (int row = 0; row < walk_.rows; ++row) {
      const Quad<float> master = Access::template Read<float>(nullptr, 0, MasterRow(row));
      Access::StoreCodes(EncodeFloat8<Element>(master.values, multipliers), index, columns_, extent_.row_wise.data);
      index += walk_.stride;
    }
  }

 private:
  __device__ float BlockAmax() const {
    __shared__ uint32_t warps[kWarps];
    const float largest = fmaxf(fmaxf(amax_[0], amax_[1]), fmaxf(amax_[2], amax_[3]));
    const uint32_t warp_amax = __reduce_max_sync(~0u, FloatBits(largest));
    if (Lane() == 0) warps[Warp()] = warp_amax;
    __syncthreads();
    uint32_t block_amax = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) block_amax = max(block_amax, warps[warp]);
    return FloatFromBits(block_amax);
  }

  __device__ void StoreScale(float scale_inv) const {
    const int64_t blocks_across = (extent_.columns + 127) / 128;
    StoreBytes(scale_inv, extent_.row_wise.scales + (tile_.row * blocks_across + tile_.column) * sizeof(float));
  }

  const DeviceExtent& extent_;
  const AdamTile& tile_;
  Walk walk_;
  uint32_t columns_;
  float amax_[kQuad] = {};
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
    const Walk& walk = tile.walk();
    uint8_t* const slots = MasterRow(TileType::kRows) + TileType::kExtraBytes;
    // The master has all rows at once, and the first rows of the others come with it.
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int row = slot; row < TileType::kRows; row += kSlots) {
        if (row < walk.rows) FetchMaster(tile, walk.first + row * walk.stride, MasterRow(row));
      }
      if (slot < walk.rows) FetchOthers(tile, walk.first + slot * walk.stride, slots + slot * kSlotBytes);
      CommitCopies();
    }
    int64_t fetched = walk.first + kSlots * walk.stride;
    int64_t index = walk.first;
    int slot = 0;
#pragma unroll 1
    for (int row = 0; row < walk.rows; ++row) {
      AwaitCopies<kSlots - 1>();
      uint8_t* const others = slots + slot * kSlotBytes;
      Elements elements = Read(index, MasterRow(row), others);
      if (row + kSlots < walk.rows) FetchOthers(tile, fetched, others);
      CommitCopies();
      fetched += walk.stride;
      Update(elements);
      const uint32_t valid = tile.Valid(index);
      Store(elements, index, valid, MasterRow(row));
      tile.Visit(index, valid, elements.master.values);
      index += walk.stride;
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

  template <typename TileType>
  __device__ void FetchMaster(const TileType& tile, int64_t index, uint8_t* row) const {
    Access::Fetch(extent_.master, index, tile.Valid(index), row);
  }

  template <typename TileType>
  __device__ void FetchOthers(const TileType& tile, int64_t index, uint8_t* slot) const {
    const uint32_t valid = tile.Valid(index);
    Access::Fetch(extent_.gradient, index, valid, slot);
    Access::Fetch(exp_avg(), index, valid, slot + kGradientBytes);
    Access::Fetch(exp_avg_sq(), index, valid, slot + kGradientBytes + kFirstBytes);
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
    const Walk& walk = tile.walk();
    for (int row = 0; row < walk.rows; ++row) {
      const int64_t index = walk.first + row * walk.stride;
      Access::Fetch(extent_.master, index, tile.Valid(index), MasterRow(row));
    }
    CommitCopies();
    AwaitCopies<0>();
    for (int row = 0; row < walk.rows; ++row) {
      const int64_t index = walk.first + row * walk.stride;
      Quad<float> master = Access::Read(extent_.master, index, MasterRow(row));
      for (int j = 0; j < kQuad; ++j) master.values[j] = CanonicalNan(master.values[j]);
      Access::Keep(master, MasterRow(row));
      tile.Visit(index, tile.Valid(index), master.values);
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

// kLarge: extents of 128 x 128 blocks, or else of MXFP8. Those without scales are in both kinds.
template <typename Access, bool kLarge, typename Rows>
__device__ void RunFormat(const DeviceExtent& extent, const AdamTile& tile, Rows rows) {
  const bool e4m3 = extent.encoding.element == ElementType::kE4M3;
  if (GpuTileShape(extent.encoding.format).rows == 1) {
    RunTile<FlatTile<Access>>(extent, tile, rows);
  } else if constexpr (kLarge) {
    if (e4m3) return RunTile<Fp8BlockTile<Access, E4M3>>(extent, tile, rows);
    RunTile<Fp8BlockTile<Access, E5M2>>(extent, tile, rows);
  } else {
    if (e4m3) return RunTile<Mxfp8Tile<Access, E4M3>>(extent, tile, rows);
    RunTile<Mxfp8Tile<Access, E5M2>>(extent, tile, rows);
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

Kernel StepKernelOf(const AdamKind& kind) {
  if (kind.quads) return kind.large ? StepKernelOf<QuadAccess, true>(kind) : StepKernelOf<QuadAccess, false>(kind);
  return kind.large ? StepKernelOf<StridedAccess, true>(kind) : StepKernelOf<StridedAccess, false>(kind);
}

template <typename Access>
Kernel EncodeKernelOf(bool large) {
  if (large) return {AdamEncodeKernel<Access, true>, kSharedBytes<Access, true>};
  return {AdamEncodeKernel<Access, false>, kSharedBytes<Access, false>};
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
  return Launch(kind.quads ? EncodeKernelOf<QuadAccess>(kind.large) : EncodeKernelOf<StridedAccess>(kind.large), launch,
                stream);
}

}  // namespace paramshard::gpu
