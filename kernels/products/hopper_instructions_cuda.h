// Instructions of GPUs of compute capability 9.0 that C++ has no words for: barriers in shared memory, copies of boxes of
// tensors (TMA), and products of warpgroups (WGMMA). Names are those of the PTX manual.
//
// Internal to kernels/, for CUDA sources.
#ifndef PARAMSHARD_KERNELS_PRODUCTS_HOPPER_INSTRUCTIONS_CUDA_H_
#define PARAMSHARD_KERNELS_PRODUCTS_HOPPER_INSTRUCTIONS_CUDA_H_

#include <cuda.h>

#include <cstdint>

namespace paramshard::gpu::hopper {

// Threads that execute products together.
inline constexpr int kWarpgroup = 128;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Clusters.

__device__ __forceinline__ uint32_t RankInCluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Barriers that count arrivals and bytes. `parity` is that of the phase to wait for.

__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier in the same place of another block of the cluster. Orders no writes: a release to the cluster
// would wait for all of this thread's memory accesses.
__device__ __forceinline__ void ArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void AwaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A barrier of the threads of one warpgroup.
__device__ __forceinline__ void SyncWarpgroup(uint32_t id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kWarpgroup) : "memory");
}

// Registers of each thread of this warpgroup from now on.

template <int kCount>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Copies of a box of a matrix. Elements outside of the matrix are read as zero, and not written.

__device__ __forceinline__ void LoadBox(const CUtensorMap& map, int32_t column, int32_t row, uint32_t target,
                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// To the same place in each block of the cluster in `ranks`, whose barriers count the bytes.
__device__ __forceinline__ void LoadBoxForCluster(const CUtensorMap& map, int32_t column, int32_t row, uint32_t target,
                                                  uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(ranks)
      : "memory");
}

__device__ __forceinline__ void StoreBox(const CUtensorMap& map, int32_t column, int32_t row, uint32_t source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(column), "r"(row), "r"(source)
               : "memory");
}

__device__ __forceinline__ void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the stores of this thread have read shared memory.
__device__ __forceinline__ void AwaitStoresRead() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void AwaitStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to stores of boxes.
__device__ __forceinline__ void FenceForStores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 8 x 8 matrices of 16 bit elements, four at a time: a thread has two neighbours of row lane / 4 of each, and the address
// of row lane % 8 of matrix lane / 8.

__device__ __forceinline__ void LoadMatrices(uint32_t address, uint32_t (&values)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void StoreTransposes(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// Products. Operands are boxes of 64 elements (128 bytes) a row, each with chunks of 16 bytes swizzled by the row.

// Describes an operand at `address`. `leading`: bytes between boxes of an operand whose rows are terms; 0 if terms follow
// each other. The next 8 rows lie 1024 bytes further on.
__device__ __forceinline__ uint64_t DescribeOperand(uint32_t address, uint32_t leading) {
  constexpr uint64_t kNextRows = 1024 >> 4;
  constexpr uint64_t kSwizzle128 = 1;
  return (static_cast<uint64_t>(address & 0x3ffff) >> 4) | (static_cast<uint64_t>(leading >> 4) << 16) |
         (kNextRows << 32) | (kSwizzle128 << 62);
}

__device__ __forceinline__ void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `kLeft` groups of products are under way.
template <int kLeft>
__device__ __forceinline__ void AwaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// Keeps the compiler from moving accesses to sums across this point: products write them at any time.
__device__ __forceinline__ void FenceRegisters(float (&sums)[128]) {
#pragma unroll
  for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// d = left * right + (adds ? d : 0): 64 x 256 sums of 16 terms. Rows of a transposed operand are terms.
template <bool kLeftIsTransposed, bool kRightIsTransposed>
__device__ __forceinline__ void Multiply64x256x16(float (&d)[128], uint64_t left, uint64_t right, bool adds) {
#define PARAMSHARD_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PARAMSHARD_16(i) PARAMSHARD_4(i), PARAMSHARD_4(i + 4), PARAMSHARD_4(i + 8), PARAMSHARD_4(i + 12)
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, adds, 1, 1, %131, %132;\n"
      "}"
      : PARAMSHARD_16(0), PARAMSHARD_16(16), PARAMSHARD_16(32), PARAMSHARD_16(48), PARAMSHARD_16(64), PARAMSHARD_16(80),
        PARAMSHARD_16(96), PARAMSHARD_16(112)
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)), "n"(int{kLeftIsTransposed}), "n"(int{kRightIsTransposed}));
#undef PARAMSHARD_16
#undef PARAMSHARD_4
}

}  // namespace paramshard::gpu::hopper

#endif  // PARAMSHARD_KERNELS_PRODUCTS_HOPPER_INSTRUCTIONS_CUDA_H_
