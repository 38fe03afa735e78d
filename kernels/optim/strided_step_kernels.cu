#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {

DeviceKernel StridedStepKernel(const KernelKind& kind) {
  static_assert(kMomentCount == 2, "a number of moments without kernels");
  switch (kind.moment_count) {
    case 0:
      return StepKernelOf<StridedAccess, 0, KernelMoments::kAny>(kind);
    case 1:
      return StepKernelOf<StridedAccess, 1, KernelMoments::kAny>(kind);
    case 2:
      return StepKernelOf<StridedAccess, 2, KernelMoments::kAny>(kind);
  }
  return {};
}

DeviceKernel StridedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<StridedAccess>(tiles); }

}  // namespace paramshard::gpu
