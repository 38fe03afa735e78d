#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {

DeviceKernel StridedStepKernel(const KernelKind& kind) {
  return WithMomentCount(kind.moment_count, [&](auto count) {
    return StepKernelOf<StridedAccess, decltype(count)::value, KernelMoments::kAny>(kind);
  });
}

DeviceKernel StridedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<StridedAccess>(tiles); }

}  // namespace paramshard::gpu
