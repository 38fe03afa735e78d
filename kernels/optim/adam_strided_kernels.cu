#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel StridedStepKernel(const AdamKind& kind) {
  return StepKernelOf<StridedAccess, AdamMoments::kAny>(kind.large);
}

AdamKernel StridedEncodeKernel(bool large) { return EncodeKernelOf<StridedAccess>(large); }

}  // namespace paramshard::gpu
