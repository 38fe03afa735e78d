#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {

DeviceKernel ShiftedStepKernel(const KernelKind& kind) {
  switch (kind.moments) {
    case KernelMoments::kFP32:
      return StepKernelOf<ShiftedAccess, KernelMoments::kFP32>(kind);
    case KernelMoments::kBF16:
      return StepKernelOf<ShiftedAccess, KernelMoments::kBF16>(kind);
    case KernelMoments::kFP16:
    case KernelMoments::kFP8:
    case KernelMoments::kAny:
      break;  // not shifted
  }
  return {};
}

DeviceKernel ShiftedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<ShiftedAccess>(tiles); }

}  // namespace paramshard::gpu
