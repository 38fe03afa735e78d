#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel QuadStepKernel(const AdamKind& kind) {
  switch (kind.moments) {
    case AdamMoments::kFP32:
      return StepKernelOf<QuadAccess, AdamMoments::kFP32>(kind);
    case AdamMoments::kBF16:
      return StepKernelOf<QuadAccess, AdamMoments::kBF16>(kind);
    case AdamMoments::kFP16:
      return StepKernelOf<QuadAccess, AdamMoments::kFP16>(kind);
    case AdamMoments::kFP8:
      return StepKernelOf<QuadAccess, AdamMoments::kFP8>(kind);
    case AdamMoments::kAny:
      return StepKernelOf<QuadAccess, AdamMoments::kAny>(kind);
  }
  return {};
}

AdamKernel QuadEncodeKernel(StepTiles tiles) { return EncodeKernelOf<QuadAccess>(tiles); }

}  // namespace paramshard::gpu
