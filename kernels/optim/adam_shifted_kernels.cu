#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel ShiftedStepKernel(const AdamKind& kind) {
  switch (kind.moments) {
    case AdamMoments::kFP32:
      return StepKernelOf<ShiftedAccess, AdamMoments::kFP32>(kind);
    case AdamMoments::kBF16:
      return StepKernelOf<ShiftedAccess, AdamMoments::kBF16>(kind);
    case AdamMoments::kFP16:
    case AdamMoments::kFP8:
    case AdamMoments::kAny:
      break;  // not shifted
  }
  return {};
}

AdamKernel ShiftedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<ShiftedAccess>(tiles); }

}  // namespace paramshard::gpu
