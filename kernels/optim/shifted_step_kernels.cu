#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {
namespace {

template <int kCount>
DeviceKernel KernelOf(const KernelKind& kind) {
  switch (kind.moments) {
    case KernelMoments::kFP32:
      return StepKernelOf<ShiftedAccess, kCount, KernelMoments::kFP32>(kind);
    case KernelMoments::kBF16:
      return StepKernelOf<ShiftedAccess, kCount, KernelMoments::kBF16>(kind);
    case KernelMoments::kFP16:
    case KernelMoments::kFP8:
    case KernelMoments::kAny:
      break;  // not shifted
  }
  return {};
}

}  // namespace

DeviceKernel ShiftedStepKernel(const KernelKind& kind) {
  static_assert(kMomentCount == 2, "a number of moments without kernels");
  switch (kind.moment_count) {
    case 0:
      return StepKernelOf<ShiftedAccess, 0, KernelMoments::kFP32>(kind);
    case 1:
      return KernelOf<1>(kind);
    case 2:
      return KernelOf<2>(kind);
  }
  return {};
}

DeviceKernel ShiftedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<ShiftedAccess>(tiles); }

}  // namespace paramshard::gpu
