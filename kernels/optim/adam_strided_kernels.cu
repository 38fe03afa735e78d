#include "kernels/optim/adam_rows_cuda.h"

namespace paramshard::gpu {

AdamKernel StridedStepKernel(const AdamKind& kind) { return StepKernelOf<StridedAccess, AdamMoments::kAny>(kind); }

AdamKernel StridedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<StridedAccess>(tiles); }

}  // namespace paramshard::gpu
