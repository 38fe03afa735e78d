#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {

DeviceKernel QuadStepKernel(const KernelKind& kind) {
  switch (kind.moments) {
    case KernelMoments::kFP32:
      return StepKernelOf<QuadAccess, KernelMoments::kFP32>(kind);
    case KernelMoments::kBF16:
      return StepKernelOf<QuadAccess, KernelMoments::kBF16>(kind);
    case KernelMoments::kFP16:
      return StepKernelOf<QuadAccess, KernelMoments::kFP16>(kind);
    case KernelMoments::kFP8:
      return StepKernelOf<QuadAccess, KernelMoments::kFP8>(kind);
    case KernelMoments::kAny:
      return StepKernelOf<QuadAccess, KernelMoments::kAny>(kind);
  }
  return {};
}

DeviceKernel QuadEncodeKernel(StepTiles tiles) { return EncodeKernelOf<QuadAccess>(tiles); }

}  // namespace paramshard::gpu
