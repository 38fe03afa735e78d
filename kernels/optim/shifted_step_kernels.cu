#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {
namespace {

template <int kCount>
DeviceKernel KernelOf(const KernelKind& kind) {
  if constexpr (kCount == 0) {
    return StepKernelOf<ShiftedAccess, 0, KernelMoments::kFP32>(kind);
  } else {
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
}

}  // namespace

DeviceKernel ShiftedStepKernel(const KernelKind& kind) {
  return WithMomentCount(kind.moment_count, [&](auto count) { return KernelOf<decltype(count)::value>(kind); });
}

DeviceKernel ShiftedEncodeKernel(StepTiles tiles) { return EncodeKernelOf<ShiftedAccess>(tiles); }

}  // namespace paramshard::gpu
