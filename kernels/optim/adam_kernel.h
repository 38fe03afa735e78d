// The fused step's kernels, which several sources define for the source that launches them.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_KERNEL_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_KERNEL_H_

#include "kernels/optim/adam_kernels.h"

namespace paramshard::gpu {

// A kernel and the dynamic shared memory that it needs.
struct AdamKernel {
  void (*function)(AdamLaunch) = nullptr;
  int shared_bytes = 0;
};

// The kernels of each access. All moments are taken by quads, FP32 and BF16 when shifted, and kAny when strided.
AdamKernel QuadStepKernel(const AdamKind& kind);
AdamKernel ShiftedStepKernel(const AdamKind& kind);
AdamKernel StridedStepKernel(const AdamKind& kind);
AdamKernel QuadEncodeKernel(StepTiles tiles);
AdamKernel ShiftedEncodeKernel(StepTiles tiles);
AdamKernel StridedEncodeKernel(StepTiles tiles);

// Takes the late tiles of NVFP4_2D.
AdamKernel Nvfp4EncodeKernel();

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_KERNEL_H_
