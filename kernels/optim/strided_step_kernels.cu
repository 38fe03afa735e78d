#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {

DeviceKernel StridedStepKernel(const KernelKind& kind) {
  return StepKernelOf<StridedAccess, KernelMoments::kAny>(kind);
}

DeviceKernel StridedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<StridedAccess>(tiles); }

}  // namespace paramshard::gpu
