// One block of 256 threads works on one tile. A thread owns four elements of each of 8 or 16 rows, and is alone with
// them: it copies them into shared memory some rows ahead (cp.async, which takes no registers), updates them, stores
// the new state and keeps the new master in shared memory. Only amaxes cross threads: within a warp while rows pass,
// and once per tile between warps, before the elements that depend on them are encoded. Two or three blocks fit a
// multiprocessor; while one starts or ends, the others keep memory busy. Where rows do not begin at aligned addresses,
// the update takes the elements as they lie in memory, and the encoding is a second part of its own
// (shifted_tiles_cuda.h).

#include "kernels/optim/adam_kernels.h"

#include "kernels/optim/adam_kernel.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {
namespace {

AdamKernel StepKernelOf(const AdamKind& kind) {
  switch (kind.access) {
    case AdamAccess::kQuads:
      return QuadStepKernel(kind);
    case AdamAccess::kShifted:
      return ShiftedStepKernel(kind);
    case AdamAccess::kStrided:
      return StridedStepKernel(kind);
    case AdamAccess::kNvfp4:
      break;  // encodes only
  }
  return {};
}

AdamKernel EncodeKernelOf(const AdamKind& kind) {
  switch (kind.access) {
    case AdamAccess::kQuads:
      return QuadEncodeKernel(kind.tiles);
    case AdamAccess::kShifted:
      return ShiftedEncodeKernel(kind.tiles);
    case AdamAccess::kNvfp4:
      return Nvfp4EncodeKernel();
    case AdamAccess::kStrided:
      return StridedEncodeKernel(kind.tiles);
  }
  return {};
}

cudaError_t Launch(const AdamKernel& kernel, const AdamLaunch& launch, cudaStream_t stream) {
  if (kernel.function == nullptr) return cudaErrorInvalidDeviceFunction;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel.function<<<static_cast<unsigned int>(launch.tile_count), kThreads, kernel.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

__global__ __launch_bounds__(kThreads) void StoreScalingsKernel(const DeviceExtent* extents,
                                                                const DeviceScaling* scalings, uint32_t count) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const DeviceExtent& extent = extents[i];
  uint8_t* target = nullptr;
  switch (scalings[i].stored_as) {
    case StoredScaling::kNone:
      break;
    case StoredScaling::kScaleInv:
      target = extent.row_wise.scales;
      break;
    case StoredScaling::kAmax:
      target = extent.row_wise.amax;
      break;
  }
  if (target != nullptr) StoreBytes(scalings[i].stored, target);
}

}  // namespace

cudaError_t LaunchAdamStep(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream) {
  return Launch(StepKernelOf(kind), launch, stream);
}

cudaError_t LaunchAdamEncode(const AdamKind& kind, const AdamLaunch& launch, cudaStream_t stream) {
  return Launch(EncodeKernelOf(kind), launch, stream);
}

cudaError_t LaunchStoreScalings(const DeviceExtent* extents, const DeviceScaling* scalings, uint32_t count,
                                cudaStream_t stream) {
  StoreScalingsKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(extents, scalings, count);
  return cudaGetLastError();
}

}  // namespace paramshard::gpu
