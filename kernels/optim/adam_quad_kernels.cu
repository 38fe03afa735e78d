#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel QuadStepKernel(const AdamKind& kind) {
  switch (kind.moments) {
    case AdamMoments::kFP32:
      return StepKernelOf<QuadAccess, AdamMoments::kFP32>(kind.tiles);
    case AdamMoments::kBF16:
      return StepKernelOf<QuadAccess, AdamMoments::kBF16>(kind.tiles);
    case AdamMoments::kFP16:
      return StepKernelOf<QuadAccess, AdamMoments::kFP16>(kind.tiles);
    case AdamMoments::kFP8:
      return StepKernelOf<QuadAccess, AdamMoments::kFP8>(kind.tiles);
    case AdamMoments::kAny:
      return StepKernelOf<QuadAccess, AdamMoments::kAny>(kind.tiles);
  }
  return {};
}

AdamKernel QuadEncodeKernel(StepTiles tiles) { return EncodeKernelOf<QuadAccess>(tiles); }

}  // namespace paramshard::gpu
