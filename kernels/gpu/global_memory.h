// Loads, stores and copies of global memory for CUDA sources. Each is one instruction, at the place where it is
// written.
//
// With plain assignments the compiler would make four stores of four words whose address space it does not know, and
// would move a load down to the use of its value, behind waits for other values.

#ifndef PARAMSHARD_KERNELS_GPU_GLOBAL_MEMORY_H_
#define PARAMSHARD_KERNELS_GPU_GLOBAL_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace paramshard::gpu {

// Loads an object of 1, 2, 4, 8 or 16 bytes.
template <typename T>
__device__ __forceinline__ T LoadGlobal(const void* address) {
  T value;
  if constexpr (sizeof(T) == 16) {
    uint4 words;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(address)
                 : "memory");
    memcpy(&value, &words, sizeof(value));
  } else if constexpr (sizeof(T) == 8) {
    uint2 words;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(address) : "memory");
    memcpy(&value, &words, sizeof(value));
  } else {
    uint32_t word;
    if constexpr (sizeof(T) == 4) asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    if constexpr (sizeof(T) == 2) {
      uint16_t half;
      asm volatile("ld.global.b16 %0, [%1];" : "=h"(half) : "l"(address) : "memory");
      word = half;
    }
    if constexpr (sizeof(T) == 1) asm volatile("ld.global.b8 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    memcpy(&value, &word, sizeof(value));
  }
  return value;
}

// Keeps the compiler from using values of earlier loads before this point, so that all loads are in flight together.
// All lanes of a warp that have not returned call it.
__device__ __forceinline__ void HoldLoads() { __syncwarp(); }

// Stores an object of 1, 2, 4, 8 or 16 bytes.
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
    if constexpr (sizeof(T) == 2) {
      asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(static_cast<uint16_t>(word)));
    }
    if constexpr (sizeof(T) == 1) asm volatile("st.global.b8 [%0], %1;" ::"l"(address), "r"(word));
  }
}

// Starts a copy of 16 or 8 bytes into shared memory, which AwaitCopies() waits for. Prefetches the surrounding lines
// into the L2 cache, which saves 3 to 7 % of the time if rows are not aligned to lines.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;" ::"r"(target), "l"(global), "n"(kBytes)
                 : "memory");
  }
}

// The same for the first `source_bytes` of 16, 8 or 4 bytes, with zeros for the rest.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, int source_bytes) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2, %3;" ::"r"(target), "l"(global), "n"(kBytes),
                 "r"(source_bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, except for its latest kPending commits.
template <int kPending>
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_GLOBAL_MEMORY_H_
