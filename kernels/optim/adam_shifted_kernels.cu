#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel ShiftedStepKernel(const AdamKind& kind) {
  if (kind.moments == AdamMoments::kFP32) return StepKernelOf<ShiftedAccess, AdamMoments::kFP32>(kind.large);
  return StepKernelOf<ShiftedAccess, AdamMoments::kBF16>(kind.large);
}

AdamKernel ShiftedEncodeKernel(bool large) { return EncodeKernelOf<ShiftedAccess>(large); }

}  // namespace paramshard::gpu
