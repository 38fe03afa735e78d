#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel QuadStepKernel(const AdamKind& kind) {
  switch (kind.moments) {
    case AdamMoments::kFP32:
      return StepKernelOf<QuadAccess, AdamMoments::kFP32>(kind.large);
    case AdamMoments::kBF16:
      return StepKernelOf<QuadAccess, AdamMoments::kBF16>(kind.large);
    case AdamMoments::kFP16:
      return StepKernelOf<QuadAccess, AdamMoments::kFP16>(kind.large);
    case AdamMoments::kFP8:
      return StepKernelOf<QuadAccess, AdamMoments::kFP8>(kind.large);
    default:
      return StepKernelOf<QuadAccess, AdamMoments::kAny>(kind.large);
  }
}

AdamKernel QuadEncodeKernel(bool large) { return EncodeKernelOf<QuadAccess>(large); }

}  // namespace paramshard::gpu
