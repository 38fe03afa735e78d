#include "kernels/optim/step_rows_cuda.h"

namespace paramshard::gpu {
namespace {

template <int kCount>
DeviceKernel KernelOf(const KernelKind& kind) {
  if constexpr (kCount == 0) {
    return StepKernelOf<QuadAccess, 0, KernelMoments::kFP32>(kind);
  } else {
    switch (kind.moments) {
      case KernelMoments::kFP32:
        return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP32>(kind);
      case KernelMoments::kBF16:
        return StepKernelOf<QuadAccess, kCount, KernelMoments::kBF16>(kind);
      case KernelMoments::kFP16:
        return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP16>(kind);
      case KernelMoments::kFP8:
        return StepKernelOf<QuadAccess, kCount, KernelMoments::kFP8>(kind);
      case KernelMoments::kAny:
        if constexpr (kCount > 1) return StepKernelOf<QuadAccess, kCount, KernelMoments::kAny>(kind);
        break;  // one moment has one type
    }
    return {};
  }
}

}  // namespace

DeviceKernel QuadStepKernel(const KernelKind& kind) {
  return WithMomentCount(kind.moment_count, [&](auto count) { return KernelOf<decltype(count)::value>(kind); });
}

DeviceKernel QuadEncodeKernel(StepTiles tiles) { return EncodeKernelOf<QuadAccess>(tiles); }

}  // namespace paramshard::gpu
