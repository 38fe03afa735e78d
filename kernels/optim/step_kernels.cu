// One block of 256 threads works on one tile. A thread owns four elements of each of 8 or 16 rows, and is alone with
// them: it copies them into shared memory some rows ahead (cp.async, which takes no registers), updates them, stores
// the new state and keeps the new master in shared memory. Only amaxes cross threads: within a warp while rows pass,
// and once per tile between warps, before the elements that depend on them are encoded. Two or three blocks fit a
// multiprocessor; while one starts or ends, the others keep memory busy. Where rows do not begin at aligned addresses,
// the update takes the elements as they lie in memory, and the encoding is a second part of its own
// (shifted_tiles_cuda.h).

#include "kernels/optim/step_kernels.h"

#include "kernels/optim/device_kernel.h"
#include "kernels/optim/tile_memory_cuda.h"

namespace paramshard::gpu {
namespace {

DeviceKernel StepKernelOf(const KernelKind& kind) {
  switch (kind.access) {
    case KernelAccess::kQuads:
      return QuadStepKernel(kind);
    case KernelAccess::kShifted:
      return ShiftedStepKernel(kind);
    case KernelAccess::kStrided:
      return StridedStepKernel(kind);
    case KernelAccess::kNvfp4:
      break;  // encodes only
  }
  return {};
}

DeviceKernel EncodeKernelOf(const KernelKind& kind) {
  switch (kind.access) {
    case KernelAccess::kQuads:
      return QuadEncodeKernel(kind.tiles);
    case KernelAccess::kShifted:
      return ShiftedEncodeKernel(kind.tiles);
    case KernelAccess::kNvfp4:
      return Nvfp4EncodeKernel();
    case KernelAccess::kStrided:
      return StridedEncodeKernel(kind.tiles);
  }
  return {};
}

cudaError_t Launch(const DeviceKernel& kernel, const KernelLaunch& launch, cudaStream_t stream) {
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

cudaError_t LaunchStep(const KernelKind& kind, const KernelLaunch& launch, cudaStream_t stream) {
  return Launch(StepKernelOf(kind), launch, stream);
}

cudaError_t LaunchEncode(const KernelKind& kind, const KernelLaunch& launch, cudaStream_t stream) {
  return Launch(EncodeKernelOf(kind), launch, stream);
}

cudaError_t LaunchStoreScalings(const DeviceExtent* extents, const DeviceScaling* scalings, uint32_t count,
                                cudaStream_t stream) {
  StoreScalingsKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(extents, scalings, count);
  return cudaGetLastError();
}

}  // namespace paramshard::gpu
