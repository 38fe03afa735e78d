// The fused step's kernels, which several sources define for the source that launches them.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_DEVICE_KERNEL_H_
#define PARAMSHARD_KERNELS_OPTIM_DEVICE_KERNEL_H_

#include "kernels/optim/step_kernels.h"

namespace paramshard::gpu {

// A kernel and the dynamic shared memory that it needs.
struct DeviceKernel {
  void (*function)(KernelLaunch) = nullptr;
  int shared_bytes = 0;
};

// The kernels of each access. All moments are taken by quads, FP32 and BF16 when shifted, and kAny when strided. Without
// moments their type is FP32, or kAny when strided.
DeviceKernel QuadStepKernel(const KernelKind& kind);
DeviceKernel ShiftedStepKernel(const KernelKind& kind);
DeviceKernel StridedStepKernel(const KernelKind& kind);
DeviceKernel QuadEncodeKernel(StepTiles tiles);
DeviceKernel ShiftedEncodeKernel(StepTiles tiles);
DeviceKernel StridedEncodeKernel(StepTiles tiles);

// Takes the late tiles of NVFP4_2D.
DeviceKernel Nvfp4EncodeKernel();

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_DEVICE_KERNEL_H_
